package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/wire"
)

// planNumber is the number of the latest plan, including a previous scheduler's plan that only backends know of; 0:
// none is known.
func (g *registry) planNumber() uint64 { return max(g.knownPlan(), g.toldPlan) }

// knownPlan is the number of the latest plan that this scheduler knows in full.
func (g *registry) knownPlan() (latest uint64) {
	if g.rollout.plan != nil {
		latest = g.rollout.plan.Number
	}
	if g.heard.record != nil {
		latest = max(latest, g.heard.record.Number)
	}
	return latest
}

// applyPlan checks a plan and begins to carry it out.
func (g *registry) applyPlan(p Plan) error {
	switch latest := g.planNumber(); {
	case g.standsBy:
		return fmt.Errorf("%w: this scheduler stands by: ask the one that leads", ErrPlan)
	case g.heard.record != nil && g.heard.record.State.underWay():
		return fmt.Errorf("%w: plan %d of the scheduler before goes on when its GPUs are here: wait until it has ended", ErrPlan, latest)
	case g.rollout.applying():
		return fmt.Errorf("%w: plan %d is %s: wait until it has ended, or roll it back", ErrPlan, latest, g.rollout.state)
	case p.Number > wire.PlanNumberMax:
		return fmt.Errorf("%w: its number is %d: want at most %d", ErrPlan, p.Number, uint64(wire.PlanNumberMax))
	case p.Number <= latest:
		return fmt.Errorf("%w: its number is %d, older than what runs: want more than %d; make a new one", ErrPlan, p.Number, latest)
	}

	// The present placement and the wanted one give the steps.
	v := g.viewPlacement()
	wanted, err := v.placementOf(p)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPlan, err)
	}
	r, steps, err := plan.NewRollout(p.Number, *v.Fleet(), v.Present, wanted)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPlan, err)
	}
	g.beginRollout(r, steps, v, PlanApplying)
	return nil
}

func (g *registry) rollBackPlan() error {
	r := &g.rollout
	state := r.state
	if g.heard.record != nil {
		state = g.heard.record.State
	}

	switch {
	case g.standsBy:
		return fmt.Errorf("%w: this scheduler stands by: ask the one that leads", ErrPlan)
	case state == PlanNone:
		return fmt.Errorf("%w: no plan is known that was applied", ErrPlan)
	case state == PlanRollingBack || state == PlanRolledBack:
		return fmt.Errorf("%w: plan %d is %s already", ErrPlan, g.planNumber(), state)
	}

	// A previous scheduler's plan is rolled back once its GPUs are here.
	g.e.log.Info("plan is rolled back", "plan", g.planNumber())
	if g.heard.record != nil {
		back := *g.heard.record
		back.State = PlanRollingBack
		g.heard.record = &back
		g.e.planRecord.Store(&back)
		return nil
	}

	r.plan.RollBack(g.presentOf(r))
	r.state = PlanRollingBack
	g.recordPlan()
	g.advanceRollout(g.e.clock.Now())
	return nil
}

// placementOf converts a plan to a placement. Models that it does not name stay where they are.
func (v *placementView) placementOf(p Plan) (plan.Placement, error) {
	// Begin with what is offered now, for the models that the plan does not name.
	wanted := make(plan.Placement, len(v.keys))
	for m := range wanted {
		wanted[m] = make([]plan.Residence, len(v.gpus))
		for g, at := range v.Present[m] {
			if at == plan.Offered {
				wanted[m][g] = plan.Offered
			}
		}
	}

	gpus := map[string]int{}
	for i := range v.gpus {
		gpus[v.gpuName(int32(i))] = i
	}

	// A named model leaves the GPUs that the plan does not list for it.
	seen := make([]bool, len(v.keys))
	for _, x := range p.Models {
		m, known := v.index[x.Model+"\x00"+x.Version]
		switch {
		case !known:
			return nil, fmt.Errorf("model %s:%s: no backend has it or can load it", x.Model, x.Version)
		case seen[m]:
			return nil, fmt.Errorf("model %s:%s: the plan names it twice", x.Model, x.Version)
		}

		seen[m] = true
		clear(wanted[m])
		for _, name := range x.GPUs {
			g, known := gpus[name]
			if !known {
				return nil, fmt.Errorf("model %s:%s: GPU %q is not here", x.Model, x.Version, name)
			}
			if !v.Loadable[m][g] {
				return nil, fmt.Errorf("model %s:%s: the backend of GPU %q does not know it", x.Model, x.Version, name)
			}
			wanted[m][g] = plan.Offered
		}
	}
	return wanted, nil
}

func (v *placementView) describeStep(s plan.Step) PlanStep {
	return PlanStep{Number: s.Number, Act: s.Kind.String(), Model: keyName(v.keys[s.Model]), GPU: v.gpuName(s.GPU)}
}

func (v *placementView) gpuName(g int32) string { return v.gpus[g].String() }

// namePool returns an error of plan.PlaceModels that names the pool's GPUs and models instead of numbering them.
func (v *placementView) namePool(err error) error {
	pool, ok := errors.AsType[*plan.PoolError](err)
	if !ok {
		return err
	}

	// A pool may have thousands of GPUs; the first one says which pool it is.
	name := v.gpuName(pool.GPUs[0])
	if more := len(pool.GPUs) - 1; more > 0 {
		name = fmt.Sprintf("%s and %d more", name, more)
	}
	if of, ok := errors.AsType[*plan.ModelsError](pool.Err); ok {
		return fmt.Errorf("GPU %s: model %s: %w", name, strings.Join(v.names(of.Models), " with "), of.Err)
	}
	return fmt.Errorf("GPU %s: %w", name, pool.Err)
}

// String returns the operators' name of a GPU: its backend and its number there.
func (k gpuKey) String() string { return fmt.Sprintf("%s/%d", k.backend, k.index) }

func (v *placementView) names(models []int32) []string { return keyNames(v.keys, models) }

func keyNames(keys []string, models []int32) []string {
	all := []string{}
	for _, m := range models {
		all = append(all, keyName(keys[m]))
	}
	return all
}

// planStatus returns the state of the latest plan.
func (g *registry) planStatus() PlanStatus {
	r := &g.rollout
	s := PlanStatus{State: PlanNone, UnderWay: []PlanStep{}, NotServed: []string{}, LeftOut: []LeftOutOf{}, GPUs: g.residents()}

	// A plan of the former scheduler that has not continued yet is known only by its record.
	if h := g.heard.record; h != nil {
		s.Number, s.State = h.Number, h.State
		return s
	}
	if r.plan == nil {
		return s
	}

	s.Number, s.State, s.Taken, s.NotServed = r.plan.Number, r.state, r.taken, keyNames(r.models, r.plan.Gaps)
	for _, x := range r.plan.LeftOut {
		s.LeftOut = append(s.LeftOut, LeftOutOf{keyName(r.models[x.Model]), r.gpus[x.GPU].String(), x.Why})
	}
	if r.applying() {
		s.Left = r.plan.Left(g.presentOf(r))
		for i, w := range r.work {
			s.UnderWay = append(s.UnderWay, PlanStep{r.taken + 1 + i, w.step.Kind.String(), keyName(r.models[w.step.Model]), r.gpus[w.step.GPU].String()})
		}
	}
	return s
}

// residents returns each GPU's models.
func (g *registry) residents() []PlannedGPU {
	v := g.viewPlacement()
	all := make([]PlannedGPU, len(v.gpus))
	for i, key := range v.gpus {
		b := g.backend(key.backend)
		x := PlannedGPU{GPU: key.String(), Kind: b.gpuDetail(key.index).Kind, Memory: v.GPUs[i].Memory, Models: []ResidentModel{}}
		if u := b.gpus[key.index]; u != nil {
			x.SubCluster = g.clusters[u.sub].label
		}

		// Used includes the working memory of the largest model.
		largest := int64(0)
		for m := range v.keys {
			if at := v.Present[m][i]; at != plan.Absent {
				y := &v.Models[m]
				x.Models = append(x.Models, ResidentModel{Model: keyName(v.keys[m]), State: at.String(), Static: y.Static, Dynamic: y.Dynamic, Rate: y.Rate})
				x.Used, largest = x.Used+y.Static, max(largest, y.Dynamic)
			}
		}
		x.Used += largest
		slices.SortFunc(x.Models, func(a, b ResidentModel) int { return strings.Compare(a.Model, b.Model) })
		all[i] = x
	}
	return all
}
