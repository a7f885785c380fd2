package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// A GPU that changes its sub-cluster may still run batches of the old one, and only the old ranker learns of their
// ends. The new ranker grants the GPU only when all of them have been reported. Their planned ends are no guide,
// because the cause of the change, a model that loads and warms up, delays them.

// addGPUs lets rankers grant GPUs, except those that still run batches of another sub-cluster.
func (g *registry) addGPUs(gpus []*gpu) {
	// All GPUs are known before the first is granted: a turn may reach any of them.
	for _, u := range gpus {
		g.e.gpus[u.id].Store(u)
	}

	for _, u := range gpus {
		// Read before the ranker is locked: no goroutine holds two locks (I1).
		until := g.e.runsUntil(g.e.clock.Now(), u)
		r := g.e.ranker(u.sub)
		t := g.e.beginTurn(&g.spare)
		r.enter(t)

		if err := r.s.AddGPU(t.now, u.id, u.epoch); err != nil {
			g.e.log.Error("gpu not added", "gpu", u.name, "err", err)
		} else {
			r.beginHealth(&u.health)
			r.s.SetGroup(u.id, u.b.group)
			if until > t.now {
				r.s.Hold(t.now, u.id, until)
				g.awaited = append(g.awaited, u)
			}
		}
		r.advance(g.e, t)
		r.mu.Unlock()
		g.e.finishTurn(t)
	}
}

// renewAwaited extends the holds of GPUs that still run batches of another sub-cluster, and forgets the others. A
// report meanwhile ends a hold at once, in finish.
func (g *registry) renewAwaited() {
	now := g.e.clock.Now()
	g.awaited = slices.DeleteFunc(g.awaited, func(u *gpu) bool {
		// A GPU that is sick or loading keeps its hold for that reason.
		others := u.sick.Load() || slices.ContainsFunc(g.rollout.work, func(w *backendStep) bool { return w.held == u })
		gone := g.e.gpu(u.id) != u
		if !gone && !others {
			g.holdGPU(u, 0)
		}
		return gone || g.e.runsUntil(now, u) <= now
	})
}

// runsUntil returns until when to hold a GPU for batches of another sub-cluster; 0 if it has none in flight. It adds
// some time to the planned end, because nobody knows how late a batch will be. A batch that was reported before its
// end is not in flight, but occupies its GPU until then.
func (e *Engine) runsUntil(now sched.Time, u *gpu) (until sched.Time) {
	if freed := sched.Time(u.freed.Load()); freed > now {
		until = freed
	}

	if u.step.Load() != 0 {
		until = max(until, sched.Time(u.stepEnds.Load()))
	}

	for _, p := range e.parts {
		p.mu.Lock()

		// Batches of its own sub-cluster do not count: its ranker learns of their ends.
		for k := range p.batches {
			f := &p.batches[k]
			if f.gpu != nil && f.gpu != u && f.gpu.b == u.b && f.gpu.index == u.index {
				until = max(until, f.ends, now.Add(holdFor))
			}
		}
		p.mu.Unlock()
	}
	return until
}

// endAwaited tells the new rankers of GPUs that a batch of the old ones has ended.
func (e *Engine) endAwaited(t *turn) {
	for _, x := range t.awaited {
		until := max(x.freeAt, e.runsUntil(t.now, x.g))
		r := e.ranker(x.g.sub)
		r.enter(t)
		if !x.g.sick.Load() {
			r.s.Hold(t.now, x.g.id, t.now) // only ending the hold returns the time that it took
			r.s.Hold(t.now, x.g.id, until)
		}
		r.advance(e, t)
		r.mu.Unlock()
	}
	clear(t.awaited)
	t.awaited = t.awaited[:0]
}
