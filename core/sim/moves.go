package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// MovesReport is what came of plans that moved models.
type MovesReport struct {
	Plans, Steps   int // that ended
	Moved          int // models, by all plans
	Placements     int // that backends carried out
	MemoryExceeded int // loads that found no room on their GPU
	GivenBack      int // requests whose model was no longer loaded
	Absences       int // of backends, for longer than a plan waits for their GPUs
	LeftOut        int // GPUs that models of plans were to come to, and did not
	Homeless       int // models that no GPU offers at the end
	Elsewhere      int // models that are not where the last plan wants them
	Epochs         engine.EpochStats
	Share          float64 // load time of the models that a plan moves, of all models'
	Kills          int     // of the leader, while a plan was under way
	Undone         int     // plans that the successor put back
	Anew           int     // plans that nobody had told the successor of, so that they were applied again
	Refused        int     // plans that came at a bad moment: a GPU was away, or backends knew of a plan that its scheduler had lost
}

// DrawPlans returns Draw's options with models that move, by plans that are applied or that schedulers make themselves, which are
// drawn from a stream of their own.
func DrawPlans(seed uint64) Options {
	o, r := drawAlike(seed), rand.New(rand.NewPCG(seed, 7))
	o.Clusters = 2 + r.IntN(2)
	o.Backends = max(o.Backends, o.Clusters)
	o.Models = o.Clusters * (1 + r.IntN(6))

	o.LoadTime = Duration(100e6 * r.Float64() * r.Float64())

	switch r.IntN(3) {
	case 0:
		o.Moved = 1 + r.IntN(o.Models)
	case 1:
		o.Again = 1 + r.IntN(4)
	case 2:
		o.Epoch = Duration(1e9 + r.Float64()*2e9)
	}

	if o.Epoch == 0 && o.Schedulers > 1 && r.IntN(2) == 0 {
		o.KillAt, o.Undo = 1+r.IntN(8), r.IntN(2) == 0
	}
	if r.IntN(3) == 0 {
		o.AwayAt = 1 + r.IntN(8)
	}
	return o
}

// moves are the plans of a run, one after the other: either some models move once to the next sub-cluster, or one model
// moves again and again. Whoever applies them knows only what engines tell.
type moves struct {
	c      *Cluster
	shift  []int // by model: its sub-cluster's number, beyond its first
	next   int   // plans chosen
	done   int   // plans that ended
	number uint64
	begun  bool // the latest plan was applied
	killed bool
	undo   bool // the plan is to be put back
	ended  bool
}

// moving says whether plans of a run move models.
func (o *Options) moving() bool { return o.Moved > 0 || o.Again > 0 }

// loading says whether backends load models: by these plans, or by those that schedulers make themselves.
func (o *Options) loading() bool { return o.moving() || o.Epoch > 0 }

// moveLook is how often whoever applies plans looks at them.
const moveLook Duration = 200e6

// beginMoves applies plans from a tenth of the run on.
func (c *Cluster) beginMoves(span Duration) {
	if !c.o.moving() {
		return
	}
	c.moves = &moves{c: c, shift: make([]int, len(c.models)), number: 1}
	at := c.o.MoveAt
	if at == 0 {
		at = span / 10
	}
	c.after(at, c.moves.look)
	if len(c.schedulers) > 1 {
		c.sharePlans()
	}
}

// look applies the next plan when the one before has ended. A plan whose scheduler died goes on by itself; it is applied
// anew only where the scheduler died before it could tell of it, and put back where Undo says so.
func (m *moves) look() {
	c := m.c
	defer func() {
		if !m.ended && c.check.err == nil {
			c.after(moveLook, m.look)
		}
	}()

	// Whoever leads by now is asked when the backends have introduced themselves.
	s := c.leader()
	if s == nil || s.gpus() < c.o.Backends*c.o.GPUs {
		return
	}
	now, err := s.e.PlanStatus()
	if err != nil {
		c.check.fail("PlanStatus: %v", err)
		return
	}
	switch {
	case m.undo && now.Number == m.number && (now.State == engine.PlanApplying || now.State == engine.PlanApplied):
		m.c.report.Moves.Undone++
		if _, err := s.e.RollBackPlan(); err != nil && !errors.Is(err, engine.ErrPlan) {
			c.check.fail("RollBackPlan: %v", err)
		}
		return

	case now.State == engine.PlanApplying || now.State == engine.PlanRollingBack:
		return

	case m.begun && now.Number == m.number:
		m.count(&now)
		m.number, m.done, m.begun = m.number+1, m.done+1, false
	}

	if m.done == m.plans() {
		m.ended = true
		return
	}

	if m.done == m.next {
		m.choose()
	}

	if m.killed {
		c.report.Moves.Anew++
	}
	m.applyChosen(s)
}

// applyChosen applies the plan that was chosen. One that is refused is tried again by another number: backends may know of a plan that its
// scheduler told nobody else of.
func (m *moves) applyChosen(s *scheduler) {
	_, err := s.e.ApplyPlan(m.c.planDocument(m.number, m.shift))

	switch {
	case errors.Is(err, engine.ErrPlan):
		m.c.report.Moves.Refused++
		m.number++
	case err != nil:
		m.c.check.fail("ApplyPlan: %v", err)
	default:
		m.begun = true
	}
}

// plans is how many there will be.
func (m *moves) plans() int {
	if m.c.o.Again > 0 {
		return m.c.o.Again
	}
	return 1
}

// choose picks what the next plan moves: models of middle popularity, as many of every sub-cluster, so that the load stays
// even.
func (m *moves) choose() {
	o := &m.c.o
	m.next++
	first := len(m.shift) / 2 / o.Clusters * o.Clusters
	n := o.Moved
	if o.Again > 0 {
		n = 1
	}
	for k := first; k < min(first+n, len(m.shift)); k++ {
		// A plan that is to be undone goes back after it was cut short.
		m.shift[k]++
		m.c.report.Moves.Moved++
	}
	m.c.report.Moves.Share = float64(n) / float64(len(m.shift))
}

// count notes a plan that has ended.
func (m *moves) count(now *engine.PlanStatus) {
	r := &m.c.report.Moves
	r.Plans++
	r.Steps += now.Taken
	r.LeftOut += len(now.LeftOut)
}

// countPlacements counts what backends are asked for. When it has come to so many that a plan is under way, the leader dies, or a
// backend leaves for long.
func (c *Cluster) countPlacements(asked int) {
	before := c.placements
	c.placements += asked
	reaches := func(many int) bool { return before < many && c.placements >= many }

	if m := c.moves; m != nil && reaches(c.o.KillAt) {
		m.killed = true
		c.after(c.withinPlan(), m.kill)
	}
	if !c.calm && reaches(c.o.AwayAt) {
		c.after(c.withinPlan(), c.someBack().leaveForLong)
	}
}

// withinPlan is how far away a moment of the plan is whose placements backends are asked for: its beginning, or one somewhere within it.
func (c *Cluster) withinPlan() Duration {
	return Duration(c.rng.IntN(2)) * c.within(0, 2*c.o.LoadTime)
}

// kill ends the leader.
func (m *moves) kill() {
	c := m.c
	s := c.leader()
	if s == nil || m.ended {
		return
	}
	c.report.Moves.Kills++
	if c.o.Undo { // whoever comes next puts back what was there
		m.undo = true
		clear(m.shift)
	}
	s.die(50e6)
}

// leader is the scheduler that leads and lives; nil: none does.
func (c *Cluster) leader() *scheduler {
	for _, s := range c.schedulers {
		if s.leads && !s.dead && s.paused <= c.now {
			return s
		}
	}
	return nil
}

// movableModel is a model of a run in which models move: all of a group are alike, one in each sub-cluster, so that the
// load stays even. It batches as vision models do, and its SLO is several times its longest batch.
func movableModel(i, group int) clusterModel {
	alpha, beta := 0.4e6+0.1e6*float64(group*7%10), 3e6+0.5e6*float64(group*3%10)
	m := clusterModel{name: fmt.Sprintf("m%d", i), table: make([]time.Duration, 16), slo: 100e6, static: 100<<20 + uint64(group*37%11)*(40<<20)}
	for b := range m.table {
		m.table[b] = time.Duration(alpha*float64(b+1) + beta)
	}
	m.cost = float64(m.table[15]) / 16
	return m
}

// homeOf is the sub-cluster that a model begins in.
func (c *Cluster) homeOf(model int) int { return model % c.o.Clusters }

// planDocument is the plan that has every model in its first sub-cluster, shifted.
func (c *Cluster) planDocument(number uint64, shift []int) engine.Plan {
	p := engine.Plan{Number: number}
	for k := range c.models {
		x := engine.PlannedModel{Model: c.models[k].name, Version: "1"}
		for _, b := range c.backs {
			if b.index%c.o.Clusters == (c.homeOf(k)+shift[k])%c.o.Clusters {
				for g := range c.o.GPUs {
					x.GPUs = append(x.GPUs, fmt.Sprintf("%s/%d", b.hello.Name, g))
				}
			}
		}
		p.Models = append(p.Models, x)
	}
	return p
}

// stockShelf gives a backend all models to load, of which it has those of its sub-cluster, and memory for them and a few
// more.
func (b *back) stockShelf(cluster int) {
	c := b.c
	var used, largest, dynamic uint64
	for k := range c.models {
		m := &c.models[k]
		there := c.homeOf(k) == cluster
		info := &b.hello.Models[k].Info
		info.Static, info.Dynamic = m.static, m.static/4
		if there {
			used += info.Static
		}
		largest, dynamic = max(largest, info.Static), max(dynamic, info.Dynamic)

		on := make([]bool, c.o.GPUs)
		for g := range on {
			on[g] = there
		}
		b.shelf.loaded = append(b.shelf.loaded, on)
	}

	for range c.o.GPUs {
		b.shelf.used = append(b.shelf.used, used)
		b.hello.Details = append(b.hello.Details, wire.GPUDetail{Kind: "simulated", Memory: used + largest + dynamic + largest/2})
	}
}

// endMoves looks at where models are at the end.
func (c *Cluster) endMoves() {
	s := c.leader()
	if !c.o.loading() || s == nil {
		return
	}
	c.report.Moves.Epochs = s.e.Stats().Epochs
	now, err := s.e.PlanStatus()
	if err != nil {
		c.check.fail("PlanStatus: %v", err)
		return
	}

	offered := map[string]map[string]bool{}
	for _, g := range now.GPUs {
		for _, m := range g.Models {
			if m.State == "offered" {
				if offered[m.Model] == nil {
					offered[m.Model] = map[string]bool{}
				}
				offered[m.Model][g.GPU] = true
			}
		}
	}
	shift := make([]int, len(c.models))
	if c.moves != nil {
		shift = c.moves.shift
	}
	for _, x := range c.planDocument(0, shift).Models {
		at := offered[x.Model+":"+x.Version]
		if len(at) == 0 {
			c.report.Moves.Homeless++
		}
		right := len(at) == len(x.GPUs)
		for _, g := range x.GPUs {
			right = right && at[g]
		}
		if !right {
			c.report.Moves.Elsewhere++
		}
	}
}
