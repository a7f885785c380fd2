package engine

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// mayLoad says whether a load may begin: best while the GPU is idle, and after some time in any case. Where the others
// carry the load, the GPU gets no batches until it has loaded. A second GPU of a sub-cluster loads only if it can be
// spared, too.
func (g *registry) mayLoad(now sched.Time, w *backendStep) bool {
	u := w.b.gpus[w.at.gpu]
	if u == nil {
		return true // it serves nothing
	}

	r := g.e.ranker(u.sub)
	r.mu.Lock()
	l := r.s.Load()
	r.mu.Unlock()
	others := g.loadsBeside(w, u)
	if !plan.MayLoadBeside(l.GPUs, others) {
		return false
	}

	// Warming up beside batches makes them late: one GPU at most does that, where none can be spared.
	if w.held != u && !u.sick.Load() {
		g.releaseHeld(w)
		if plan.MaySpareGPU(plan.DefaultTargets(), l.Demand, l.GPUs-others) {
			w.held = u
			g.holdGPU(u, holdFor)
		}
	}
	if others > 0 && w.held == nil {
		return false
	}
	return plan.LoadNow(u.batch.Load() == 0, time.Duration(now.Sub(w.since)))
}

// loadsBeside counts the GPUs of a GPU's sub-cluster that load, or are held back for it, beside a step.
func (g *registry) loadsBeside(w *backendStep, u *gpu) (n int) {
	for _, x := range g.rollout.work {
		if x == w || x.step.Kind != plan.StepLoad || x.order == 0 && x.held == nil {
			continue
		}
		if other := x.b.gpus[x.at.gpu]; other != nil && other.sub == u.sub {
			n++
		}
	}
	return n
}

// renewHolds goes on holding GPUs that load: a hold is short, so that it ends even if nobody ends it.
func (g *registry) renewHolds() {
	for _, w := range g.rollout.work {
		if w.held != nil && !w.held.b.dead.Load() {
			g.holdGPU(w.held, holdFor)
		}
	}
}

// releaseHeld ends the hold of a GPU that has loaded.
func (g *registry) releaseHeld(w *backendStep) {
	if u := w.held; u != nil {
		w.held = nil
		if !u.sick.Load() && !u.b.dead.Load() { // a sick one is held for that, too
			g.holdGPU(u, 0)
		}
	}
}

// holdGPU keeps a GPU from getting batches for a time, and until those have ended that it got in another sub-cluster.
func (g *registry) holdGPU(u *gpu, d sched.Duration) {
	until := g.e.runsUntil(g.e.clock.Now(), u) // read before the ranker is locked: nobody holds two locks (I1)
	r := g.e.ranker(u.sub)
	t := g.e.begin(&g.spare)
	r.enter(t)
	r.s.Hold(t.now, u.id, max(until, t.now.Add(d)))
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finish(t)
}
