package engine

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// mayLoad reports whether a load may begin: preferably while the GPU is idle, and after some time in any case. If the
// other GPUs carry the load, the GPU gets no batches until it has loaded. A second GPU of a sub-cluster loads only if
// it can be spared too.
func (g *registry) mayLoad(now sched.Time, w *backendStep) bool {
	u := w.b.gpus[w.at.gpu]
	if u == nil {
		return true // it serves nothing
	}

	// How loaded the sub-cluster is, and how many of its GPUs load already.
	r := g.e.ranker(u.sub)
	r.mu.Lock()
	l := r.s.Load()
	r.mu.Unlock()
	others := g.loadsBeside(w, u)
	if !plan.MayLoadBeside(l.GPUs, others) {
		return false
	}

	// Warming up beside batches makes them late, so at most one GPU does it when none can be spared.
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

// loadsBeside counts the other GPUs of a GPU's sub-cluster that load, or are held back for it.
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

// renewHolds extends the holds of GPUs that load. A hold is short, so that it ends even if it is not released.
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
		if !u.sick.Load() && !u.b.dead.Load() { // a sick GPU stays held for that reason
			g.holdGPU(u, 0)
		}
	}
}

// holdGPU keeps a GPU from getting batches for a duration, and until its batches of another sub-cluster have ended.
func (g *registry) holdGPU(u *gpu, d sched.Duration) {
	until := g.e.runsUntil(g.e.clock.Now(), u) // read before the ranker is locked: no goroutine holds two locks (I1)
	r := g.e.ranker(u.sub)
	t := g.e.beginTurn(&g.spare)
	r.enter(t)
	r.s.Hold(t.now, u.id, max(until, t.now.Add(d)))
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finishTurn(t)
}
