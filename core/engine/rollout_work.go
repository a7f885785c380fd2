package engine

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// backendStep is a backend's next or present load or unload of a plan. A backend carries them out one after another,
// so each backend has one; different backends work in parallel.
type backendStep struct {
	step  plan.Step
	b     *Backend
	at    resident
	since sched.Time // since when it is due
	order uint64     // number of the placement that was sent; 0: the step waits for its GPU
	held  *gpu       // the GPU that gets no batches during the load
}

// modelGone is why a step is left out of a plan when another model has the number.
const modelGone = "the backend has the model no longer"

// busyGPUs returns the GPUs, by number in the plan, whose backends are working on them.
func (r *rollout) busyGPUs() (gpus []int32) {
	for _, w := range r.work {
		if w.order != 0 {
			gpus = append(gpus, w.step.GPU)
		}
	}
	return gpus
}

// queueWork records the backends' next steps, and forgets those that are no longer due. It returns true if a GPU has
// left, so that the plan must be looked at again.
func (g *registry) queueWork(now sched.Time, present plan.Placement, due []plan.Step) (anew bool) {
	r := &g.rollout
	g.forgetWork(func(w *backendStep) bool { return w.order == 0 && !slices.Contains(due, w.step) })

	for _, s := range due {
		if slices.ContainsFunc(r.work, func(w *backendStep) bool { return w.step == s }) {
			continue
		}

		b, at, ok := g.locateStep(r, s)
		switch {
		case ok:
		case s.Kind == plan.StepLoad && g.backend(r.gpus[s.GPU].backend) != nil:
			r.plan.LeaveOut(present, s.Model, s.GPU, modelGone)
		default:
			r.plan.Lose(present, s.GPU)
		}
		if anew = anew || !ok; !ok {
			continue
		}
		r.work = append(r.work, &backendStep{step: s, b: b, at: at, since: max(now, g.e.clock.Now())})
	}
	return anew
}

// orderWork sends backends the steps that may begin.
func (g *registry) orderWork(now sched.Time) {
	for _, w := range slices.Clone(g.rollout.work) {
		switch {
		case w.order != 0:
		case w.step.Kind == plan.StepLoad && g.mayLoad(now, w):
			w.b.withholdModel(w.at)
			g.sendOrder(w, wire.Load)
		case w.step.Kind == plan.StepUnload && !g.inFlight(w.b, w.at.gpu, w.since):
			g.sendOrder(w, wire.Unload)
		}
	}
}

// giveUpWork leaves out steps that backends have not done in a long time, and reports whether there were any.
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

	// The report may answer a fence, a step of this plan, or an order of a former one.
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

// leaveOut continues without a model that a GPU did not get, and logs it. A nil present is computed.
func (g *registry) leaveOut(w *backendStep, present plan.Placement, why string) {
	r := &g.rollout
	s := w.step
	g.e.log.Warn("model is left out of the plan on a GPU", "plan", r.plan.Number, "model", keyName(r.models[s.Model]), "backend", w.b.name, "gpu", w.at.gpu, "err", why)
	g.forgetWork(func(x *backendStep) bool { return x == w })
	if present == nil {
		present = g.presentOf(r)
	}

	// A model that cannot be unloaded takes memory that the plan counted on: the GPU is left as it is.
	if s.Kind == plan.StepUnload {
		r.plan.Lose(present, s.GPU)
		return
	}
	delete(w.b.withheld, w.at)
	r.plan.LeaveOut(present, s.Model, s.GPU, why)
}

// forgetWork ends the holds of steps that have ended or are no longer due.
func (g *registry) forgetWork(ended func(*backendStep) bool) {
	r := &g.rollout
	for _, w := range slices.Clone(r.work) {
		if ended(w) {
			r.work = slices.DeleteFunc(r.work, func(x *backendStep) bool { return x == w })
			g.releaseHeld(w)
		}
	}
}
