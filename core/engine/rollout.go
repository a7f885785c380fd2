package engine

import (
	"fmt"
	"slices"
	"time"

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
	PlanNone        PlanState = "none" // no plan was applied since the scheduler started
	PlanApplying    PlanState = "applying"
	PlanApplied     PlanState = "applied"
	PlanRollingBack PlanState = "rolling back"
	PlanRolledBack  PlanState = "rolled back"
)

// Limits on a plan's steps.
const (
	idleMost   = sched.Duration(200 * time.Millisecond) // that a load waits for its GPU to be idle
	reportMost = sched.Duration(10 * time.Minute)       // that a backend may take for one step
	holdFor    = sched.Duration(3 * houseEvery)         // of a GPU that loads, and anew at each look
	stepsMost  = 1 << 16                                // taken at one time, which no plan needs
	planOrder  = 1 << 63                                // in the number of a plan's placement: others have numbers of their own
)

// rollout is the plan that is applied, or was last.
type rollout struct {
	plan    *plan.Rollout // nil: there was none
	state   PlanState
	models  []string // keys, by number in the plan
	gpus    []gpuKey // by number in the plan
	gaps    []int32
	taken   int
	inStep  bool                // steps are being taken: what they cause is looked at after them
	due     plan.Step           // that was begun, or is waited for
	since   sched.Time          // when
	order   uint64              // number of the placement that a backend is at work on; 0: none
	ordered plan.Step           // what it is for
	fences  map[uint64]*Backend // that have not reported theirs, by its number
	orders  uint64              // given out
	held    *gpu                // gets no batches while it loads
}

// gpuKey names a GPU across sessions of its backend.
type gpuKey struct {
	backend string
	index   int
}

// resident is a model of a backend's hello on one of its GPUs.
type resident struct{ model, gpu int }

// applying says whether a plan is under way.
func (r *rollout) applying() bool { return r.state == PlanApplying || r.state == PlanRollingBack }

// beginRollout begins to apply a plan.
func (g *registry) beginRollout(p *plan.Rollout, steps plan.Reconfiguration, s *placementView) {
	g.rollout = rollout{plan: p, state: PlanApplying, models: s.keys, gpus: s.gpus, gaps: steps.Gaps, orders: g.rollout.orders, since: g.e.clock.Now()}
	g.sendFences()
	g.e.log.Info("plan is applied", "plan", p.Number, "steps", len(steps.Steps), "models_not_served_meanwhile", len(steps.Gaps))
	g.advanceRollout(g.e.clock.Now())
}

// advanceRollout takes all steps that are due, until one must be waited for.
func (g *registry) advanceRollout(now sched.Time) {
	r := &g.rollout
	if !r.applying() || r.inStep || g.awaitFences(now) {
		return
	}

	// A hold is short, so that it ends even if nobody ends it.
	if r.held != nil && !r.held.b.dead.Load() {
		g.holdGPU(r.held, holdFor)
	}

	r.inStep = true
	defer func() { r.inStep = false }()
	for range stepsMost {
		present := g.presentOf(r)
		due := r.plan.Due(present)
		if len(due) == 0 {
			g.endRollout()
			return
		}
		if due[0].Kind != r.due.Kind || due[0].Model != r.due.Model || due[0].GPU != r.due.GPU {
			r.due, r.since = due[0], max(now, g.e.clock.Now())
		}
		if !g.takeSteps(now, present, due) {
			return
		}
	}
}

func (g *registry) endRollout() {
	g.releaseHeld()
	r := &g.rollout
	r.state = map[PlanState]PlanState{PlanApplying: PlanApplied, PlanRollingBack: PlanRolledBack}[r.state]
	g.e.log.Info("plan "+string(r.state), "plan", r.plan.Number, "steps", r.taken, "left_out", len(r.plan.LeftOut))
}

// takeSteps takes steps of one kind that are due together. It returns false while one must be waited for.
func (g *registry) takeSteps(now sched.Time, present plan.Placement, due []plan.Step) bool {
	r := &g.rollout
	b, at, ok := g.locate(r, due[0])
	if !ok {
		r.plan.Lose(present, due[0].GPU)
		return true
	}

	switch due[0].Kind {
	case plan.StepOffer, plan.StepWithdraw:
		g.setOffers(r, due)
		return true
	case plan.StepLoad:
		if r.order == 0 && g.mayLoad(now, b, at) {
			b.withhold(at)
			g.sendOrder(b, at, wire.Load)
		}
	case plan.StepUnload:
		if r.order == 0 && !g.inFlight(b, at.gpu, r.since) {
			g.sendOrder(b, at, wire.Unload)
		}
	}

	// A backend's own work is waited for, and not for ever.
	if now.Sub(r.since) < reportMost {
		return false
	}
	r.order = 0
	g.leaveOut(b, present, due[0], fmt.Sprintf("the backend did not report the step %q within %v", due[0].Kind, time.Duration(reportMost)))
	return true
}

// setOffers has GPUs offer a model, or stop, all at once: so the GPUs of a sub-cluster stay one.
func (g *registry) setOffers(r *rollout, due []plan.Step) {
	var touched []*Backend
	for _, s := range due {
		b, at, ok := g.locate(r, s)
		if !ok {
			continue // its GPU has left: the next look finds it
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

// mayLoad says whether a load may begin: best while the GPU is idle, and after some time in any case. Where the others
// carry the load, the GPU gets no batches until it has loaded.
func (g *registry) mayLoad(now sched.Time, b *Backend, at resident) bool {
	u := b.gpus[at.gpu]
	if u == nil {
		return true // it serves nothing
	}
	g.holdForLoad(u)
	return u.batch.Load() == 0 || now.Sub(g.rollout.since) >= idleMost
}

// holdForLoad holds a GPU back that is about to load, if its sub-cluster can spare it.
func (g *registry) holdForLoad(u *gpu) {
	if g.rollout.held == u || u.sick.Load() {
		return
	}
	g.releaseHeld()

	r := g.e.ranker(u.sub)
	r.mu.Lock()
	l := r.s.Load()
	r.mu.Unlock()
	if plan.MaySpareGPU(plan.DefaultTargets(), l.Demand, l.GPUs) {
		g.rollout.held = u
		g.holdGPU(u, holdFor)
	}
}

// releaseHeld ends the hold of the GPU that has loaded.
func (g *registry) releaseHeld() {
	if u := g.rollout.held; u != nil {
		g.rollout.held = nil
		if !u.sick.Load() && !u.b.dead.Load() { // a sick one is held for that, too
			g.holdGPU(u, 0)
		}
	}
}

// holdGPU keeps a GPU from getting batches for a time, and until those have ended that it got in another sub-cluster.
func (g *registry) holdGPU(u *gpu, d sched.Duration) {
	until := g.e.busyUntil(u) // read before the ranker is locked: nobody holds two locks (I1)
	r := g.e.ranker(u.sub)
	t := g.e.begin(&g.spare)
	r.enter(t)
	r.s.Hold(t.now, u.id, max(until, t.now.Add(d)))
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finish(t)
}

// sendFences asks every backend to unload a model that a GPU of it does not have. A scheduler that was here before may
// have asked for loads that nobody knows of any more: a backend carries placements out one after another, so that its
// report of the fence says that those have ended. A backend that has all of its models everywhere loads none.
func (g *registry) sendFences() {
	r := &g.rollout
	r.fences = map[uint64]*Backend{}
	for _, b := range g.backends {
		at, ok := b.absentModel()
		if !ok || b.hello.Version < commandVersion {
			continue
		}
		r.orders++
		r.fences[planOrder|r.orders] = b
		b.port.Place([]wire.Placement{{Number: planOrder | r.orders, Op: wire.Unload, GPU: uint32(at.gpu), Model: uint32(at.model)}})
	}
}

// absentModel finds a model that a GPU of the backend does not have.
func (b *Backend) absentModel() (at resident, ok bool) {
	for n := range b.hello.Models {
		for i := range b.hello.GPUs {
			if !isLoaded(&b.hello.Models[n], i) {
				return resident{n, i}, true
			}
		}
	}
	return at, false
}

// awaitFences says whether a backend that is here still has to report its fence.
func (g *registry) awaitFences(now sched.Time) bool {
	r := &g.rollout
	for number, b := range r.fences {
		if b.dead.Load() || now.Sub(r.since) >= reportMost {
			delete(r.fences, number)
		}
	}
	return len(r.fences) > 0
}

func (g *registry) sendOrder(b *Backend, at resident, op wire.PlacementOp) {
	r := &g.rollout
	r.orders++
	r.order, r.ordered = planOrder|r.orders, r.due
	b.port.Place([]wire.Placement{{Number: r.order, Op: op, GPU: uint32(at.gpu), Model: uint32(at.model)}})
}

// orderReported follows a backend's report on a step of the plan.
func (g *registry) orderReported(b *Backend, m *wire.PlacementReport) {
	r := &g.rollout
	if m.State == wire.Unloading {
		return
	}
	delete(r.fences, m.Number)
	if m.Number == 0 || m.Number != r.order {
		return
	}

	r.order = 0
	g.releaseHeld()
	if m.State != wire.LoadFailed {
		r.taken++
		return
	}
	g.leaveOut(b, g.presentOf(r), r.ordered, m.Text)
}

// leaveOut goes on without a model that a GPU did not get, and says so.
func (g *registry) leaveOut(b *Backend, present plan.Placement, s plan.Step, why string) {
	r := &g.rollout
	g.releaseHeld()
	g.e.log.Warn("model is left out of the plan on a GPU", "plan", r.plan.Number, "model", keyName(r.models[s.Model]), "backend", b.name, "gpu", r.gpus[s.GPU].index, "err", why)

	// What cannot be unloaded takes memory that the plan had counted on: the GPU is left as it is.
	if s.Kind == plan.StepUnload {
		r.plan.Lose(present, s.GPU)
		return
	}
	delete(b.withheld, resident{b.numberOf(r.models[s.Model]), r.gpus[s.GPU].index})
	r.plan.LeaveOut(present, s.Model, s.GPU, why)
}

// locate finds the place of a step in the backends that are here.
func (g *registry) locate(r *rollout, s plan.Step) (*Backend, resident, bool) {
	key := r.gpus[s.GPU]
	b := g.backend(key.backend)
	if b == nil || key.index >= len(b.gpus) {
		return nil, resident{}, false
	}
	n := b.numberOf(r.models[s.Model])
	return b, resident{n, key.index}, n >= 0
}

// numberOf returns the number of a model in the backend's hello, -1 if it does not know it.
func (b *Backend) numberOf(key string) int {
	return slices.IndexFunc(b.hello.Models, func(m wire.BackendModel) bool { return modelKey(&m.Info) == key })
}

// presentOf returns how far the plan's models have come on its GPUs. GPUs that have left since are taken out of it.
func (g *registry) presentOf(r *rollout) plan.Placement {
	present := make(plan.Placement, len(r.models))
	for m := range present {
		present[m] = make([]plan.Residence, len(r.gpus))
	}

	index := make(map[string]int32, len(r.models))
	for m, key := range r.models {
		index[key] = int32(m)
	}
	var left []int32
	for i, key := range r.gpus {
		b := g.backend(key.backend)
		if b == nil || key.index >= len(b.gpus) {
			left = append(left, int32(i))
			continue
		}
		for n := range b.hello.Models {
			if m, planned := index[modelKey(&b.hello.Models[n].Info)]; planned {
				present[m][i] = b.residence(resident{n, key.index})
			}
		}
	}

	// A load that was ordered has begun to take memory.
	if at := &present[r.ordered.Model][r.ordered.GPU]; r.order != 0 && *at == plan.Absent {
		*at = plan.Loaded
	}
	for _, i := range left {
		if !r.plan.Lost(i) {
			g.e.log.Warn("GPU is left out of the plan: its backend has left", "plan", r.plan.Number, "backend", r.gpus[i].backend, "gpu", r.gpus[i].index)
			r.plan.Lose(present, i)
			if r.ordered.GPU == i {
				r.order, r.held = 0, nil
			}
		}
	}
	return present
}

// residence is how far a model has come on a GPU.
func (b *Backend) residence(at resident) plan.Residence {
	switch {
	case b.leaving[at]:
		return plan.Loaded
	case !isLoaded(&b.hello.Models[at.model], at.gpu):
		return plan.Absent
	case b.withheld[at]:
		return plan.Warm
	}
	return plan.Offered
}

// inFlight says whether batches are under way on a GPU that were sent by some time: of what was withdrawn before it, there
// are none after it.
func (g *registry) inFlight(b *Backend, gpu int, by sched.Time) bool {
	for _, p := range g.e.parts {
		p.mu.Lock()
		found := slices.ContainsFunc(p.batches, func(f flight) bool {
			return f.gpu != nil && f.gpu.b == b && int(f.gpu.index) == gpu && f.sent <= by
		})
		p.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// moveClusters has sub-clusters of which every GPU has changed alike keep their number and their GPUs: they are only told
// of the models that they have now. GPUs that change alone change their sub-cluster, in placeGPUs.
func (g *registry) moveClusters(touched []*Backend) {
	changed := false
	for _, c := range g.clusters[1:] {
		if len(c.gpus) == 0 || !slices.ContainsFunc(c.gpus, func(u *gpu) bool { return slices.Contains(touched, u.b) }) {
			continue
		}
		loaded := g.loadedOn(c.gpus[0].b, int(c.gpus[0].index))
		if slices.Equal(loaded, c.models) || !g.loadedAlike(c, loaded) {
			continue
		}

		for _, u := range c.gpus {
			u.models.Store(g.numbersOf(u.b, int(u.index)))
		}
		c.models, changed = loaded, true
		g.e.ranker(c.number).models.Store(&loaded)
	}
	if changed {
		g.settle()
	}
}

// loadedAlike says whether all GPUs of a sub-cluster have these models, with profiles that can be planned as one, and no
// other sub-cluster of the name has the same.
func (g *registry) loadedAlike(c *cluster, loaded []uint32) bool {
	for _, x := range g.clusters[1:] {
		if x != c && len(x.gpus) > 0 && x.name == c.name && slices.Equal(x.models, loaded) {
			return false
		}
	}

	first := c.gpus[0]
	for _, u := range c.gpus[1:] {
		if !slices.Equal(g.loadedOn(u.b, int(u.index)), loaded) {
			return false
		}
		for _, id := range loaded {
			if u.b != first.b && !plan.AlikeProfiles(u.b.profileOf(id), first.b.profileOf(id)) {
				return false
			}
		}
	}
	return true
}

// profileOf returns ℓ(b) of a model by its id.
func (b *Backend) profileOf(id uint32) []time.Duration {
	return b.hello.Models[slices.Index(b.ids, id)].Profile
}

// keyName is how a model is named to people.
func keyName(key string) string {
	for i := range key {
		if key[i] == 0 {
			return key[:i] + ":" + key[i+1:]
		}
	}
	return key
}
