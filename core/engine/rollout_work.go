package engine

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// backendStep is the load or the unload of a plan that a backend is to do next, or is at work on. A backend carries them
// out one after another, so each has one; those of different backends go side by side.
type backendStep struct {
	step  plan.Step
	b     *Backend
	at    resident
	since sched.Time // it is due
	order uint64     // number of the placement that was sent; 0: the step waits for its GPU
	held  *gpu       // gets no batches while it loads
}

// busyGPUs are the GPUs, by number in the plan, whose backends are at work on them.
func (r *rollout) busyGPUs() (gpus []int32) {
	for _, w := range r.work {
		if w.order != 0 {
			gpus = append(gpus, w.step.GPU)
		}
	}
	return gpus
}

// queueWork notes the steps that backends should do next, and forgets those that are not due any more. It returns true if
// the plan must be looked at anew, since a GPU has left.
func (g *registry) queueWork(now sched.Time, present plan.Placement, due []plan.Step) (anew bool) {
	r := &g.rollout
	g.forgetWork(func(w *backendStep) bool { return w.order == 0 && !slices.Contains(due, w.step) })

	for _, s := range due {
		if slices.ContainsFunc(r.work, func(w *backendStep) bool { return w.step == s }) {
			continue
		}
		b, at, ok := g.locate(r, s)
		if !ok {
			r.plan.Lose(present, s.GPU)
			anew = true
			continue
		}
		r.work = append(r.work, &backendStep{step: s, b: b, at: at, since: max(now, g.e.clock.Now())})
	}
	return anew
}

// orderWork asks backends for the steps that may begin.
func (g *registry) orderWork(now sched.Time) {
	for _, w := range slices.Clone(g.rollout.work) {
		switch {
		case w.order != 0:
		case w.step.Kind == plan.StepLoad && g.mayLoad(now, w):
			w.b.withhold(w.at)
			g.sendOrder(w, wire.Load)
		case w.step.Kind == plan.StepUnload && !g.inFlight(w.b, w.at.gpu, w.since):
			g.sendOrder(w, wire.Unload)
		}
	}
}

// giveUpWork leaves out what backends have not done in a long time, and says whether there was any.
func (g *registry) giveUpWork(now sched.Time, present plan.Placement) (any bool) {
	for _, w := range slices.Clone(g.rollout.work) {
		waited := time.Duration(now.Sub(w.since))
		if !plan.StepOverdue(waited) {
			continue
		}
		any = true
		g.leaveOut(w, present, fmt.Sprintf("the backend did not report the step %q within %v", w.step.Kind, waited))
	}
	return any
}

func (g *registry) sendOrder(w *backendStep, op wire.PlacementOp) {
	r := &g.rollout
	r.orders++
	w.order = wire.NumberOrder(r.plan.Number, r.orders)
	w.b.port.Place([]wire.Placement{{Number: w.order, Op: op, GPU: uint32(w.at.gpu), Model: uint32(w.at.model)}})
}

// orderReported follows a backend's report on a step of the plan.
func (g *registry) orderReported(m *wire.PlacementReport) {
	r := &g.rollout
	if m.State == wire.Unloading {
		return
	}
	delete(r.fences, m.Number)
	i := slices.IndexFunc(r.work, func(w *backendStep) bool { return w.order != 0 && w.order == m.Number })
	if i < 0 {
		return
	}

	w := r.work[i]
	if m.State == wire.LoadFailed {
		g.leaveOut(w, nil, m.Text)
		return
	}
	r.taken++
	g.forgetWork(func(x *backendStep) bool { return x == w })
}

// leaveOut goes on without a model that a GPU did not get, and says so. What is present is looked at if it is not given.
func (g *registry) leaveOut(w *backendStep, present plan.Placement, why string) {
	r := &g.rollout
	s := w.step
	g.e.log.Warn("model is left out of the plan on a GPU", "plan", r.plan.Number, "model", keyName(r.models[s.Model]), "backend", w.b.name, "gpu", w.at.gpu, "err", why)
	g.forgetWork(func(x *backendStep) bool { return x == w })
	if present == nil {
		present = g.presentOf(r)
	}

	// What cannot be unloaded takes memory that the plan had counted on: the GPU is left as it is.
	if s.Kind == plan.StepUnload {
		r.plan.Lose(present, s.GPU)
		return
	}
	delete(w.b.withheld, w.at)
	r.plan.LeaveOut(present, s.Model, s.GPU, why)
}

// forgetWork ends the holds of steps that have ended, or are not due any more.
func (g *registry) forgetWork(ended func(*backendStep) bool) {
	r := &g.rollout
	for _, w := range slices.Clone(r.work) {
		if ended(w) {
			r.work = slices.DeleteFunc(r.work, func(x *backendStep) bool { return x == w })
			g.releaseHeld(w)
		}
	}
}
