package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Clockwork's constants as its authors run it: the controller aims five milliseconds before the SLO and sends a GPU
// its next batch up to five milliseconds before the GPU is free.
const (
	ClockworkBuffer = sched.Duration(5e6)
	ClockworkAhead  = sched.Duration(5e6)
)

// NewClockwork returns Clockwork's controller (Gujarati et al., OSDI '20, §5.3). It has a strategy for each batch
// size that the queue fills, valid until its latest start, which is the head's deadline − buffer − ℓ(b). A GPU with
// less than ahead of work takes the strategy with the earliest latest start. It never waits. It uses all batch sizes,
// all models on all GPUs, and no loading of weights (as Symphony §5 grants it).
//
// With buffer and ahead zero, it is the policy without the margins that a real network and real GPUs need; both are
// reported.
func NewClockwork(w *sim.World, buffer, ahead sched.Duration) sim.Server {
	c := newCentral(w)
	c.ahead = ahead
	c.pick = func(now, freeAt sched.Time) (int32, int, int) {
		best, size, first := int32(-1), 0, sched.Never
		for i := range c.queues {
			m, q := int32(i), &c.queues[i]
			if q.Len() == 0 || !c.pruneHeads(now, freeAt.Add(buffer), m) {
				continue
			}

			b := q.fitBatch(w, m, 0, now.Add(buffer), freeAt.Add(buffer))

			// With the buffer, not even a batch of one is in time.
			if b == 0 {
				w.Drop(q.Take(1)[0])
				continue
			}

			// Choose the earliest latest start.
			if at := w.Deadline(q.At(0)) - sched.Time(execTime(w, m, b)); at < first {
				best, size, first = m, b, at
			}
		}

		if best < 0 {
			return 0, 0, 0
		}
		return best, 0, size
	}
	return c
}
