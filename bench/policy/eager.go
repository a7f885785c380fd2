package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// NewEager returns the work-conserving policy: a GPU never waits while anything is queued. It takes the model whose
// head has the earliest deadline, in the largest batch that meets it, and drops heads that can no longer meet their
// deadline (Symphony §4.3, the first option of "when is a candidate schedulable", with the pruning that it shares
// with Clipper).
func NewEager(w *sim.World) sim.Server {
	c := newCentral(w)
	c.pick = func(now, freeAt sched.Time) (int32, int, int) {
		best, first := int32(-1), sched.Never
		for i := range c.queues {
			m := int32(i)
			if c.queues[i].Len() == 0 || !c.pruneHeads(now, freeAt, m) {
				continue
			}

			if d := w.Deadline(c.queues[i].At(0)); d < first {
				best, first = m, d
			}
		}

		if best < 0 {
			return 0, 0, 0
		}
		return best, 0, c.queues[best].fitBatch(w, best, 0, now, freeAt)
	}
	return c
}
