package dispatch

import (
	"time"

	"downbeat.dev/core/sched"
)

// virtual is a clock that the run advances.
type virtual struct{ now sched.Time }

func (v *virtual) Now() sched.Time { return v.now }

// stepVirtual offers the engine requests at rate for d of virtual time. It measures the cost of the decisions at any
// load, even one that this machine cannot sustain, on one core and one thread.
func (r *rig) stepVirtual(v *virtual, rate float64, d time.Duration) {
	r.cores[0].stepVirtual(v, rate, d)
}

// stepVirtual offers the core's dispatcher requests.
func (c *core) stepVirtual(v *virtual, rate float64, d time.Duration) {
	gap := 1e9 / rate
	start := int64(v.now)
	for n := 0; v.now < sched.Time(start+int64(d)); n += burst {
		// Set the clock to the burst's last arrival: a frontend submits requests that have come.
		v.now = sched.Time(start + int64(float64(n+burst-1)*gap))
		c.now.Store(int64(v.now))
		c.sent += burst
		c.to.dispatch(c, v.now, c.fillBurst(burst, n, start, gap, int64(v.now)))
		c.completeDue(int64(v.now))
	}
}
