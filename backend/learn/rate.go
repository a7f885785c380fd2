package learn

import "time"

// rateSpan is the time over which the rate of answers is a mean.
const rateSpan = 10 * time.Second

// answerRate is the rate at which a model answers requests.
type answerRate struct {
	count     func() uint64 // answers so far
	perSecond float64
	counted   uint64
	at        time.Duration // of the latest note
}

// note counts the answers up to now.
func (r *answerRate) note(now time.Duration) {
	passed := now - r.at
	if passed <= 0 {
		return
	}

	all := r.count()
	latest := float64(all-r.counted) / passed.Seconds()
	r.perSecond += (latest - r.perSecond) * min(1, passed.Seconds()/rateSpan.Seconds())
	r.counted, r.at = all, now
}
