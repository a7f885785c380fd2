package engine

import (
	"slices"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// A plan is applied while the engine serves. plan.Rollout derives the due steps from the present placement; the
// registry only carries them out: it asks backends to load and unload, and makes GPUs offer and withdraw models.

// PlanState is the state of the latest plan.
type PlanState string

// The states.
const (
	PlanNone        PlanState = "none" // no plan is known
	PlanApplying    PlanState = "applying"
	PlanApplied     PlanState = "applied"
	PlanRollingBack PlanState = "rolling back"
	PlanRolledBack  PlanState = "rolled back"
	PlanStopped     PlanState = "stopped" // a successor could not continue it
)

// underWay reports whether a plan in this state has steps left.
func (s PlanState) underWay() bool { return s == PlanApplying || s == PlanRollingBack }

// Limits on a plan's steps.
const (
	holdFor   = sched.Duration(3 * houseEvery) // of a GPU that loads; renewed at each look
	stepsMost = 1 << 16                        // taken at one time; no plan needs as many
)

// rollout is the present or latest plan.
type rollout struct {
	plan   *plan.Rollout // nil: there was none
	state  PlanState
	models []string       // keys, by number in the plan
	gpus   []gpuKey       // by number in the plan
	away   []sched.Time   // by GPU: since when its backend is away; 0: it is here, or was not looked for yet
	seen   plan.Placement // the placement at the latest look
	taken  int
	inStep bool // steps are being taken: their effects are looked at afterwards
	began  sched.Time
	work   []*backendStep      // due or in progress, one per backend
	fences map[uint64]*Backend // fences not reported yet, by number
	orders uint64              // number of orders given
}

// gpuKey names a GPU across sessions of its backend.
type gpuKey struct {
	backend string
	index   int
}

// resident is a model of a backend's hello on one of its GPUs.
type resident struct{ model, gpu int }

// applying reports whether a plan is in progress.
func (r *rollout) applying() bool { return r.state.underWay() }

// beginRollout starts to apply a plan, or records one that has ended.
func (g *registry) beginRollout(p *plan.Rollout, steps plan.Reconfiguration, s *placementView, state PlanState) {
	g.rollout = rollout{plan: p, state: state, models: s.keys, gpus: s.gpus, orders: g.rollout.orders, began: g.e.clock.Now(),
		away: make([]sched.Time, len(s.gpus)), seen: s.Present}
	g.heard = heardPlan{}
	g.recordPlan()
	if state.underWay() {
		g.sendFences()
		g.e.log.Info("plan is applied", "plan", p.Number, "state", state, "steps", len(steps.Steps), "models_not_served_meanwhile", len(steps.Gaps))
		g.advanceRollout(g.e.clock.Now())
	}
}

// advanceRollout takes all due steps, until it must wait for backends.
func (g *registry) advanceRollout(now sched.Time) {
	r := &g.rollout
	if !r.applying() || r.inStep || g.awaitFences(now) || g.awaitGPUs(now) {
		return
	}
	g.renewHolds()

	r.inStep = true
	defer func() { r.inStep = false }()

	// The due steps follow from the present placement, so they are computed again after each step that changed it.
	for range stepsMost {
		g.forgetWork(func(w *backendStep) bool { return w.b.dead.Load() })
		present := g.presentOf(r)
		due := r.plan.Due(present, r.busyGPUs())
		if len(due) == 0 && len(r.busyGPUs()) == 0 {
			g.endRollout()
			return
		}

		// Steps that need no backend are taken at once, and may make others due.
		if len(due) > 0 && (due[0].Kind == plan.StepOffer || due[0].Kind == plan.StepWithdraw) {
			g.setOffers(r, present, due)
			continue
		}
		if g.queueWork(now, present, due) {
			continue
		}
		if g.orderWork(now); !g.giveUpWork(now, present) {
			return
		}
	}
}

func (g *registry) endRollout() {
	r := &g.rollout
	g.forgetWork(func(*backendStep) bool { return true })
	r.state = map[PlanState]PlanState{PlanApplying: PlanApplied, PlanRollingBack: PlanRolledBack}[r.state]
	g.recordPlan()
	g.e.log.Info("plan "+string(r.state), "plan", r.plan.Number, "steps", r.taken, "left_out", len(r.plan.LeftOut))
}

// setOffers makes GPUs offer or withdraw a model all at once, so that the GPUs of a sub-cluster stay together.
func (g *registry) setOffers(r *rollout, present plan.Placement, due []plan.Step) {
	var touched []*Backend
	for _, s := range due {
		b, at, ok := g.locateStep(r, s)
		if !ok {
			r.plan.Lose(present, s.GPU)
			continue
		}

		// A withheld model is loaded, but the GPU does not offer it.
		if s.Kind == plan.StepOffer {
			delete(b.withheld, at)
		} else {
			b.withholdModel(at)
		}
		if !slices.Contains(touched, b) {
			touched = append(touched, b)
		}
		r.taken++
	}

	// First the sub-clusters that change as a whole, then the GPUs that change alone.
	g.moveClusters(touched)
	for _, b := range touched {
		g.placeGPUs(b)
	}
}

// gpuDetail returns the backend's description of a GPU.
func (b *Backend) gpuDetail(gpu int) (d wire.GPUDetail) {
	if gpu < len(b.hello.Details) {
		d = b.hello.Details[gpu]
	}
	return d
}

// withholdModel keeps batches of a model from a GPU that has loaded it, or is about to.
func (b *Backend) withholdModel(at resident) {
	if b.withheld == nil {
		b.withheld = map[resident]bool{}
	}
	b.withheld[at] = true
}
