package engine

import (
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// Every Options.Epoch the engine makes a plan for the cluster and applies it if it is worth its moves, as if an
// operator had asked. core/plan decides whether it is.

// EpochStats counts the plans that the engine made by itself.
type EpochStats struct {
	Applied, Kept, Failed uint64 // plans that were started, that were not worth their moves, and that could not be made or started
	// Latest weighs the latest plan made.
	Latest plan.EpochWeight
}

// epochs is the registry's state of automatic plans.
type epochs struct {
	due    sched.Time // 0: not known yet
	making bool
	stats  EpochStats
}

// planEpoch makes a plan when one is due, if this scheduler leads and no plan is being applied.
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

	// The interval counts from the due time, however long the search takes.
	x.due, x.making = now.Add(every), true

	// The search has its own copy of the state; changes meanwhile are noticed when the plan is applied.
	v := g.viewPlacement()
	v.MoveShare = plan.EpochMoveShare
	search := func() (p plan.PlacementPlan, w plan.EpochWeight, err error) {
		if p, err = plan.PlaceModels(v.Snapshot); err != nil {
			err = v.namePool(err)
		} else {
			w = plan.WeighEpoch(&v.Snapshot, p.Wanted, g.e.o.Epoch)
		}
		return p, w, err
	}

	// The search may take some 100 ms, so it runs beside the registry. In virtual time it takes no time.
	if g.e.o.Manual {
		p, w, err := search()
		g.endEpoch(v, p, w, err)
		return
	}
	g.e.running.Go(func() {
		p, w, err := search()
		_ = g.e.runInRegistry(func() { g.endEpoch(v, p, w, err) }) // fails only when the engine is closed
	})
}

// endEpoch applies a plan if it is worth its moves.
func (g *registry) endEpoch(v *placementView, p plan.PlacementPlan, w plan.EpochWeight, err error) {
	x := &g.epochs
	x.making = false

	if err == nil {
		// Operators see the weights either way.
		x.stats.Latest = w
		if !w.IsWorthMoving() {
			x.stats.Kept++
			return
		}
		err = g.applyPlan(Plan{g.planNumber() + 1, documentOf(v.keys, v.gpus, p.Wanted)})
	}

	// An operator may have begun a plan meanwhile; the next epoch tries again.
	if err != nil {
		x.stats.Failed++
		g.e.log.Warn("no plan for this epoch", "err", err)
		return
	}
	x.stats.Applied++
	g.e.log.Info("epoch begins with a plan", "plan", g.planNumber(), "models_moved", p.Moved, "busiest_before", w.Before, "busiest_after", w.After, "loads_cost", w.Cost)
}
