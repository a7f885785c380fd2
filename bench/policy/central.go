package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// central is the common part of policies with one queue per model and any model on any GPU. They decide when the GPU
// that is free first can get its next batch, which is Lead before it is free.
type central struct {
	w       *sim.World
	gpus    []int32
	queues  []fifo         // by model, empty for models that others serve
	ahead   sched.Duration // how long before a GPU is free to decide, in addition to Lead
	leadMax sched.Duration
	wake    sched.Time
	// pick chooses a model and its batch for a GPU that is free at freeAt, and drops requests that can no longer meet
	// their deadline; skip requests stay queued before the batch. b = 0: nothing to run.
	pick func(now, freeAt sched.Time) (m int32, skip, b int)
}

func newCentral(w *sim.World) *central {
	c := &central{w: w, queues: make([]fifo, len(w.Models)), wake: sched.Never, gpus: make([]int32, w.GPUs)}
	for g := range c.gpus {
		c.gpus[g] = int32(g)
	}

	for _, m := range w.Models {
		c.leadMax = max(c.leadMax, w.Lead(m.Profile.Max()))
	}
	return c
}

func (c *central) Arrive(now sched.Time, r int32, m int32) {
	c.queues[m].Push(r)
	c.serveFree(now)
}

func (c *central) Done(now sched.Time, gpu int32) {}

func (c *central) Wake(now sched.Time) { c.serveFree(now) }

func (c *central) NextWake() sched.Time { return c.wake }

// serveFree assigns batches to GPUs until none is free soon or nothing is queued.
func (c *central) serveFree(now sched.Time) {
	for {
		gpu := c.firstFree()
		f := c.w.FreeAt(gpu)

		// The batch must leave before the GPU is free, by the time that the network and the policy need.
		c.wake = f - sched.Time(c.leadMax+c.ahead)
		if c.wake > now {
			return
		}

		f = max(f, now)
		m, skip, b := c.pick(now, f)
		if b == 0 {
			// Nothing can be served; the next arrival calls serveFree again.
			c.wake = sched.Never
			return
		}

		// A batch smaller than the largest may leave later.
		c.wake = f - sched.Time(c.w.Lead(b)+c.ahead)
		if c.wake > now {
			return
		}
		c.w.Start(max(f, now.Add(c.w.Lead(b))), gpu, m, c.queues[m].Cut(skip, b))
	}
}

// firstFree returns the GPU that is free first.
func (c *central) firstFree() int32 {
	best := c.gpus[0]
	for _, g := range c.gpus[1:] {
		// A GPU that is free now is good enough: skip the others.
		if c.w.FreeAt(best) <= c.w.Now() {
			return best
		}
		if c.w.FreeAt(g) < c.w.FreeAt(best) {
			best = g
		}
	}
	return best
}

// pruneHeads drops model m's first requests that even a batch of one cannot serve in time; false: the queue is empty.
func (c *central) pruneHeads(now, freeAt sched.Time, m int32) bool {
	q := &c.queues[m]
	q.DropBefore(c.w, max(now.Add(c.w.Lead(1)), freeAt).Add(execTime(c.w, m, 1)))
	return q.Len() > 0
}
