package engine

import (
	"slices"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// A plan is applied while the engine serves. What is due follows from what is present (plan.Rollout); the registry only
// applies it: it asks backends to load and unload, and has GPUs offer models and withdraw them.

// PlanState is how the latest plan stands.
type PlanState string

// The states.
const (
	PlanNone        PlanState = "none" // no plan is known that was applied
	PlanApplying    PlanState = "applying"
	PlanApplied     PlanState = "applied"
	PlanRollingBack PlanState = "rolling back"
	PlanRolledBack  PlanState = "rolled back"
	PlanStopped     PlanState = "stopped" // a successor could not go on with it
)

// underWay says whether a plan with this state has steps left.
func (s PlanState) underWay() bool { return s == PlanApplying || s == PlanRollingBack }

// Limits on a plan's steps.
const (
	holdFor   = sched.Duration(3 * houseEvery) // of a GPU that loads, and anew at each look
	stepsMost = 1 << 16                        // taken at one time, which no plan needs
)

// rollout is the plan that is applied, or was last.
type rollout struct {
	plan   *plan.Rollout // nil: there was none
	state  PlanState
	models []string       // keys, by number in the plan
	gpus   []gpuKey       // by number in the plan
	away   []sched.Time   // by GPU: since when its backend is not here; 0: it is, or nobody has looked
	seen   plan.Placement // what was present at the latest look
	taken  int
	inStep bool // steps are being taken: what they cause is looked at after them
	began  sched.Time
	work   []*backendStep      // that is due or under way, one of each backend
	fences map[uint64]*Backend // that have not reported theirs, by its number
	orders uint64              // given out
}

// gpuKey names a GPU across sessions of its backend.
type gpuKey struct {
	backend string
	index   int
}

// resident is a model of a backend's hello on one of its GPUs.
type resident struct{ model, gpu int }

// applying says whether a plan is under way.
func (r *rollout) applying() bool { return r.state.underWay() }

// beginRollout begins to apply a plan, or takes note of one that has ended.
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

// advanceRollout takes all steps that are due, until backends must be waited for.
func (g *registry) advanceRollout(now sched.Time) {
	r := &g.rollout
	if !r.applying() || r.inStep || g.awaitFences(now) || g.awaitGPUs(now) {
		return
	}
	g.renewHolds()

	r.inStep = true
	defer func() { r.inStep = false }()

	// What is due follows from what is present, so it is asked anew after each step that changed that.
	for range stepsMost {
		g.forgetWork(func(w *backendStep) bool { return w.b.dead.Load() })
		present := g.presentOf(r)
		due := r.plan.Due(present, r.busyGPUs())
		if len(due) == 0 && len(r.busyGPUs()) == 0 {
			g.endRollout()
			return
		}

		// What needs no backend is taken at once, and may let more be done.
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

// setOffers has GPUs offer a model, or stop, all at once: so the GPUs of a sub-cluster stay one.
func (g *registry) setOffers(r *rollout, present plan.Placement, due []plan.Step) {
	var touched []*Backend
	for _, s := range due {
		b, at, ok := g.locate(r, s)
		if !ok {
			r.plan.Lose(present, s.GPU)
			continue
		}
		if s.Kind == plan.StepOffer {
			delete(b.withheld, at)
		} else {
			b.withhold(at)
		}
		if !slices.Contains(touched, b) {
			touched = append(touched, b)
		}
		r.taken++
	}

	g.moveClusters(touched)
	for _, b := range touched {
		g.placeGPUs(b)
	}
}

// gpuDetail is what the backend says of a GPU.
func (b *Backend) gpuDetail(gpu int) (d wire.GPUDetail) {
	if gpu < len(b.hello.Details) {
		d = b.hello.Details[gpu]
	}
	return d
}

// withhold keeps a GPU from getting batches of a model that it has loaded, or is about to load.
func (b *Backend) withhold(at resident) {
	if b.withheld == nil {
		b.withheld = map[resident]bool{}
	}
	b.withheld[at] = true
}
