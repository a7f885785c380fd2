package sim

import (
	"fmt"
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
	LeftOut        int
	Homeless       int // models that no GPU offers at the end
	Elsewhere      int // models that are not where the last plan wants them
	Epochs         engine.EpochStats
	Share          float64 // load time of the models that a plan moves, of all models'
	Kills          int     // of the leader, while a plan was under way
	Undone         int     // plans that the successor put back
	Anew           int     // plans that nobody had told the successor of, so that they were applied again
}

// moves are the plans of a run, one after the other: either some models move once to the next sub-cluster, or one model
// moves again and again. Whoever applies them knows only what engines tell.
type moves struct {
	c      *Cluster
	shift  []int // by model: its sub-cluster's number, beyond its first
	next   int   // plans begun
	number uint64
	orders int // placements that backends were asked for
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
		if _, err := s.e.RollBackPlan(); err != nil {
			c.check.fail("RollBackPlan: %v", err)
		}
		return
	case now.State == engine.PlanApplying || now.State == engine.PlanRollingBack:
		return
	case now.Number == m.number:
		m.count(&now)
		m.number++
	}

	if m.next == m.plans() && m.number > uint64(m.plans()) {
		m.ended = true
		return
	}
	if m.number > uint64(m.next) {
		m.choose()
	}
	if m.killed {
		c.report.Moves.Anew++
	}
	if _, err := s.e.ApplyPlan(c.planDocument(m.number, m.shift)); err != nil {
		c.check.fail("ApplyPlan: %v", err)
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

// noteOrders has the leader die when backends have been asked for so many placements.
func (m *moves) noteOrders(n int) {
	c := m.c
	m.orders += n
	if m.killed || c.o.KillAt == 0 || m.orders < c.o.KillAt {
		return
	}
	m.killed = true
	c.after(Duration(c.rng.IntN(2))*c.within(0, 2*c.o.LoadTime), m.kill) // at its beginning or somewhere within it
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
