package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// central is what policies share that keep one queue per model and may use any GPU: they decide
// when the GPU that is free first can be given its next batch, which is Lead before it is free.
type central struct {
	w       *sim.World
	queues  []fifo
	ahead   sched.Duration // decide so long before a GPU is free, beyond Lead
	leadMax sched.Duration
	wake    sched.Time
	// pick chooses a model and its batch for a GPU that is free at freeAt, and drops what cannot
	// be met any more: skip requests stay queued before the batch. b = 0: nothing to run.
	pick func(now, freeAt sched.Time) (m int32, skip, b int)
}

func newCentral(w *sim.World) *central {
	c := &central{w: w, queues: make([]fifo, len(w.Models)), wake: sched.Never}
	for _, m := range w.Models {
		c.leadMax = max(c.leadMax, w.Lead(m.Profile.Max()))
	}
	return c
}

func (c *central) Arrive(now sched.Time, r int32, m int32) {
	c.queues[m].push(r)
	c.serve(now)
}

func (c *central) Done(now sched.Time, gpu int32) {}

func (c *central) Wake(now sched.Time) { c.serve(now) }

func (c *central) NextWake() sched.Time { return c.wake }

// serve gives batches to GPUs until none is free soon or nothing is queued.
func (c *central) serve(now sched.Time) {
	for {
		gpu := c.first()
		f := c.w.FreeAt(gpu)
		c.wake = f - sched.Time(c.leadMax+c.ahead)
		if c.wake > now {
			return
		}
		f = max(f, now)
		m, skip, b := c.pick(now, f)
		if b == 0 {
			c.wake = sched.Never
			return
		}
		c.wake = f - sched.Time(c.w.Lead(b)+c.ahead)
		if c.wake > now {
			return
		}
		c.w.Start(max(f, now.Add(c.w.Lead(b))), gpu, m, c.queues[m].cut(skip, b))
	}
}

// first returns the GPU that is free first.
func (c *central) first() int32 {
	best := int32(0)
	for g := int32(1); g < int32(c.w.GPUs) && c.w.FreeAt(best) > c.w.Now(); g++ {
		if c.w.FreeAt(g) < c.w.FreeAt(best) {
			best = g
		}
	}
	return best
}

// prune drops model m's heads that even a batch of one cannot meet; false: nothing is left.
func (c *central) prune(now, freeAt sched.Time, m int32) bool {
	q := &c.queues[m]
	q.dropBefore(c.w, max(now.Add(c.w.Lead(1)), freeAt).Add(exec(c.w, m, 1)))
	return q.len() > 0
}

// NewEager returns the work-conserving policy: a GPU never waits while anything is queued. It
// takes the model whose head has the earliest deadline, in the largest batch that meets it, and
// drops heads that can no longer be met (Symphony §4.3, the first option of "when is a candidate
// schedulable", with the pruning that it shares with Clipper).
func NewEager(w *sim.World) sim.Server {
	c := newCentral(w)
	c.pick = func(now, freeAt sched.Time) (int32, int, int) {
		best, first := int32(-1), sched.Never
		for i := range c.queues {
			m := int32(i)
			if c.queues[i].len() == 0 || !c.prune(now, freeAt, m) {
				continue
			}
			if d := w.Deadline(c.queues[i].at(0)); d < first {
				best, first = m, d
			}
		}
		if best < 0 {
			return 0, 0, 0
		}
		return best, 0, c.queues[best].fit(w, best, 0, now, freeAt)
	}
	return c
}
