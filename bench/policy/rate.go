package policy

import "downbeat.dev/core/sched"

// estimator is a model's arrival rate: given, or an average with a time constant of two seconds.
type estimator struct {
	rate  float64 // requests/s
	fixed bool
	n     int
	at    sched.Time
}

func (e *estimator) setRate(rate float64) {
	if rate > 0 {
		e.rate, e.fixed = rate, true
	}
}

// countArrival counts a request; true if the estimate changed.
func (e *estimator) countArrival(now sched.Time) bool {
	e.n++
	dt := now.Sub(e.at)
	if e.fixed || dt < 50e6 {
		return false
	}
	w := max(float64(dt)/(2e9+float64(dt)), float64(dt)/float64(now))
	e.rate += w * (float64(e.n)*1e9/float64(dt) - e.rate)
	e.n, e.at = 0, now
	return true
}
