package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// A plan outlives the scheduler that applies it. Its successor knows the number, the wanted placement and the
// original one, and continues from what is present.

// PlanRecord is what a scheduler needs to continue or roll back a plan. Wanted and Before name every model that was
// offered.
type PlanRecord struct {
	Number uint64         `json:"number"`
	State  PlanState      `json:"state"`
	Wanted []PlannedModel `json:"wanted"`
	Before []PlannedModel `json:"before"`
}

// heardPlan is a plan of a previous scheduler.
type heardPlan struct {
	record *PlanRecord // nil: there is none, or it is being continued
	since  sched.Time  // since when this scheduler leads and waits for the plan's GPUs; 0: not yet
}

// PlanRecord returns the latest plan; nil if none is known. A record is replaced, never changed. Safe for concurrent
// use.
func (e *Engine) PlanRecord() *PlanRecord { return e.planRecord.Load() }

// HearPlan records a plan of another scheduler, the leader, or of this scheduler's previous run. A plan older than
// the known one is ignored. So is any plan if this scheduler leads and has one of its own.
func (e *Engine) HearPlan(r *PlanRecord) error {
	return e.runInRegistry(func() {
		if g := &e.reg; r.Number >= g.knownPlan() && (g.standsBy || g.knownPlan() == 0) {
			g.heard = heardPlan{record: r}
			e.planRecord.Store(r)
		}
	})
}

// SetLeading tells the engine whether this scheduler leads. A leader continues the latest plan that it heard of once
// the plan's GPUs have registered; a scheduler that stops leading drops its own. An engine starts as the leader.
func (e *Engine) SetLeading(leads bool) error {
	return e.runInRegistry(func() {
		g := &e.reg
		switch {
		case leads == !g.standsBy:
		case leads:
			g.standsBy = false
		default:
			g.standsBy = true
			g.forgetWork(func(*backendStep) bool { return true })
			g.rollout = rollout{state: PlanNone, orders: g.rollout.orders}
			g.heard = heardPlan{record: e.planRecord.Load()}
		}
	})
}

// resumePlan continues the previous scheduler's plan once its GPUs are here.
func (g *registry) resumePlan(now sched.Time) {
	h := &g.heard
	if h.record == nil || g.standsBy {
		return
	}
	if h.since == 0 {
		h.since = now
	}
	v := g.viewPlacement()
	if !plan.ResumeNow(v.hasAll(h.record), time.Duration(now.Sub(h.since))) {
		return
	}

	r := h.record
	*h = heardPlan{}
	if err := g.continuePlan(r, v); err != nil {
		g.e.log.Error("plan of the previous scheduler is not continued", "plan", r.Number, "err", err)
		_ = g.continuePlan(&PlanRecord{Number: r.Number, State: PlanStopped, Before: r.Before}, v) // stops the plan with the models as they are placed
	}
}

// hasAll reports whether all GPUs of a plan are here.
func (v *placementView) hasAll(r *PlanRecord) bool {
	here := map[string]bool{}
	for i := range v.gpus {
		here[v.gpuName(int32(i))] = true
	}
	for _, x := range slices.Concat(r.Wanted, r.Before) {
		if slices.ContainsFunc(x.GPUs, func(name string) bool { return !here[name] }) {
			return false
		}
	}
	return true
}

// continuePlan starts from the state that the previous scheduler left.
func (g *registry) continuePlan(r *PlanRecord, v *placementView) error {
	// A plan that was being rolled back continues towards what was there before it.
	wanted := map[PlanState][]PlannedModel{PlanApplying: r.Wanted, PlanRollingBack: r.Before}[r.State]
	to, err := v.placementOf(Plan{Models: v.withoutGone(wanted)})
	if err != nil {
		return err
	}
	before, err := v.placementOf(Plan{Models: v.withoutGone(r.Before)})
	if err != nil {
		return err
	}

	p, steps, err := plan.NewRollout(r.Number, *v.Fleet(), v.Present, to)
	if err != nil {
		return fmt.Errorf("plan %d, %s: %w", r.Number, r.State, err)
	}

	// The rollout starts from the present state, but a rollback goes back to the state before the plan.
	p.Before = before
	g.beginRollout(p, steps, v, r.State)
	return nil
}

// withoutGone removes models and GPUs from a plan that are gone. A model none of whose GPUs is here stays where it is.
func (v *placementView) withoutGone(models []PlannedModel) (left []PlannedModel) {
	loadable := map[string]bool{}
	for m := range v.keys {
		for i := range v.gpus {
			if v.Loadable[m][i] {
				loadable[v.keys[m]+"\x00"+v.gpuName(int32(i))] = true
			}
		}
	}

	// The caller's list stays as it is.
	for _, x := range models {
		x.GPUs = slices.DeleteFunc(slices.Clone(x.GPUs), func(name string) bool { return !loadable[x.Model+"\x00"+x.Version+"\x00"+name] })
		if len(x.GPUs) > 0 {
			left = append(left, x)
		}
	}
	return left
}

// recordPlan publishes the state of the plan for successors.
func (g *registry) recordPlan() {
	r := &g.rollout
	g.e.planRecord.Store(&PlanRecord{Number: r.plan.Number, State: r.state, Wanted: documentOf(r.models, r.gpus, r.plan.Wanted), Before: documentOf(r.models, r.gpus, r.plan.Before)})
}

// documentOf converts a placement to a plan's document. A model that no GPU holds has no line.
func documentOf(models []string, gpus []gpuKey, p plan.Placement) []PlannedModel {
	all := []PlannedModel{}
	for m, key := range models {
		name, version, _ := strings.Cut(key, "\x00")
		x := PlannedModel{Model: name, Version: version}
		for i, at := range p[m] {
			if at != plan.Absent {
				x.GPUs = append(x.GPUs, gpus[i].String())
			}
		}
		if len(x.GPUs) > 0 {
			all = append(all, x)
		}
	}
	return all
}
