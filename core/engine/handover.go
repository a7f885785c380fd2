package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// A GPU that changes its sub-cluster may still run what it got in the old one, whose ranker alone is told of the ends. The
// new ranker grants it only when all of that has been reported: until when it was planned to end says little, since what
// made the GPU change, a load that warms up, delays it.

// addGPUs lets rankers grant GPUs, except those that still run what they got in another sub-cluster.
func (g *registry) addGPUs(gpus []*gpu) {
	for _, u := range gpus {
		g.e.gpus[u.id].Store(u)
	}

	for _, u := range gpus {
		// Read before the ranker is locked: nobody holds two locks (I1).
		until := g.e.runsUntil(g.e.clock.Now(), u)
		r := g.e.ranker(u.sub)
		t := g.e.begin(&g.spare)
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
		g.e.finish(t)
	}
}

// renewAwaited goes on holding GPUs that still run what they got in another sub-cluster, and forgets the others. What is
// reported meanwhile ends a hold at once, in finish.
func (g *registry) renewAwaited() {
	now := g.e.clock.Now()
	g.awaited = slices.DeleteFunc(g.awaited, func(u *gpu) bool {
		// One that is sick, or loads, is held for that, too.
		others := u.sick.Load() || slices.ContainsFunc(g.rollout.work, func(w *backendStep) bool { return w.held == u })
		gone := g.e.gpu(u.id) != u
		if !gone && !others {
			g.holdGPU(u, 0)
		}
		return gone || g.e.runsUntil(now, u) <= now
	})
}

// runsUntil is until when a GPU is to be held for what it got in another sub-cluster; 0: it has nothing of that under way.
// A batch is waited for beyond its planned end, for some time at once, since nobody knows how long.
// One that was reported before its end is under way no more, but has its GPU until then.
func (e *Engine) runsUntil(now sched.Time, u *gpu) (until sched.Time) {
	if freed := sched.Time(u.freed.Load()); freed > now {
		until = freed
	}

	if u.step.Load() != 0 {
		until = max(until, sched.Time(u.stepEnds.Load()))
	}

	for _, p := range e.parts {
		p.mu.Lock()

		// Its own batches do not count: their ends are told to its ranker.
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

// endAwaited has the new rankers of GPUs know that a batch of the old ones has ended.
func (e *Engine) endAwaited(t *turn) {
	for _, x := range t.awaited {
		until := max(x.freeAt, e.runsUntil(t.now, x.g))
		r := e.ranker(x.g.sub)
		r.enter(t)
		if !x.g.sick.Load() {
			r.s.Hold(t.now, x.g.id, t.now) // only a hold that is ended gives back the time that it took
			r.s.Hold(t.now, x.g.id, until)
		}
		r.advance(e, t)
		r.mu.Unlock()
	}
	clear(t.awaited)
	t.awaited = t.awaited[:0]
}
