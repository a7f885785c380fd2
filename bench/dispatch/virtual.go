package dispatch

import (
	"time"

	"downbeat.dev/core/sched"
)

// virtual is a clock that the run advances.
type virtual struct{ now sched.Time }

func (v *virtual) Now() sched.Time { return v.now }

// stepVirtual offers requests at rate for d of virtual time. It measures the cost of the decisions at any load, even
// one that this machine cannot sustain, on one core and one thread.
func (r *rig) stepVirtual(v *virtual, rate float64, d time.Duration) {
	c := r.cores[0]
	gap := 1e9 / rate
	start := int64(v.now)
	for n := 0; v.now < sched.Time(start+int64(d)); n += burst {
		// Set the clock to the burst's last arrival: a frontend submits requests that have come.
		v.now = sched.Time(start + int64(float64(n+burst-1)*gap))
		c.now.Store(int64(v.now))
		for i := range burst {
			at := start + int64(float64(n+i)*gap)
			m := &c.burst[i]
			m.ID, m.Model, m.Budget, m.Input.Key = c.id, c.nextModel(), at+slo-int64(v.now), uint64(at)
			c.id++
		}

		c.sent += burst
		c.front.Submit(c.burst[:])
		r.e.Poll(v.now)
		c.completeDue(int64(v.now))
	}
}
