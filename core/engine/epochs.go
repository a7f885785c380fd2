package engine

import (
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// Epochs: every Options.Epoch the cluster is planned anew, and what is worth its moves is applied, as if an operator had
// asked for it. What is worth it is decided in core/plan.

// EpochStats tell what came of the plans that the engine made by itself.
type EpochStats struct {
	Applied, Kept, Failed uint64 // plans that were begun, that were not worth their moves, and that could not be made or begun
	// Latest is of the latest plan that was made.
	Latest plan.EpochWeight
}

// epochs is the registry's part of it.
type epochs struct {
	due    sched.Time // 0: not known yet
	making bool
	stats  EpochStats
}

// planEpoch makes a plan when one is due. None is made while another is applied, or by who does not lead.
func (g *registry) planEpoch(now sched.Time) {
	x, every := &g.epochs, sched.Duration(g.e.o.Epoch)
	if every == 0 || g.standsBy || x.making || g.rollout.applying() || g.heard.record != nil {
		return
	}
	if x.due == 0 {
		x.due = now.Add(every) // rates are known by then
	}
	if now < x.due {
		return
	}

	// The next one is due an epoch after this one was, however long the search takes.
	x.due, x.making = now.Add(every), true

	// The view is the search's own: what changes meanwhile is found when the plan is applied.
	v := g.viewPlacement()
	v.MoveShare = plan.EpochMoveShare
	search := func() (p plan.PlacementPlan, w plan.EpochWeight, err error) {
		if p, err = plan.PlaceModels(v.Snapshot); err == nil {
			w = plan.WeighEpoch(&v.Snapshot, p.Wanted, g.e.o.Epoch)
		}
		return p, w, err
	}

	// The search may take some 100 ms: what serves goes on. In virtual time it takes none.
	if g.e.o.Manual {
		p, w, err := search()
		g.endEpoch(v, p, w, err)
		return
	}
	g.e.running.Go(func() {
		p, w, err := search()
		_ = g.e.manage(func() { g.endEpoch(v, p, w, err) }) // refused only when the engine is closed
	})
}

// endEpoch applies a plan that is worth its moves.
func (g *registry) endEpoch(v *placementView, p plan.PlacementPlan, w plan.EpochWeight, err error) {
	x := &g.epochs
	x.making = false
	if err == nil {
		// Kept or applied, operators see what was weighed.
		x.stats.Latest = w
		if !w.IsWorthMoving() {
			x.stats.Kept++
			return
		}
		err = g.applyPlan(Plan{g.planNumber() + 1, documentOf(v.keys, v.gpus, p.Wanted)})
	}
	if err != nil {
		x.stats.Failed++
		g.e.log.Warn("no plan for this epoch", "err", err)
		return
	}
	x.stats.Applied++
	g.e.log.Info("epoch begins with a plan", "plan", g.planNumber(), "models_moved", p.Moved, "busiest_before", w.Before, "busiest_after", w.After, "loads_cost", w.Cost)
}
