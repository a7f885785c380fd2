package swarm

import (
	"errors"
	"math/rand/v2"

	"downbeat.dev/core/engine"
)

// MovesReport counts the plans that moved models.
type MovesReport struct {
	Plans, Steps   int // that ended
	Moved          int // models, by all plans
	Placements     int // carried out by backends
	MemoryExceeded int // loads that found no room on their GPU
	GivenBack      int // requests whose model was no longer loaded
	Absences       int // of backends, for longer than a plan waits for their GPUs
	LeftOut        int // GPUs that a plan's model did not reach
	Homeless       int // models without a GPU at the end
	Elsewhere      int // models that are not where the last plan puts them
	Epochs         engine.EpochStats
	Share          float64 // load time of the models that a plan moves, as a share of all models'
	Kills          int     // of the leader, while a plan was under way
	Undone         int     // plans that the successor put back
	Anew           int     // plans unknown to the successor, and applied again
	Refused        int     // plans refused because a GPU was away or backends knew of a plan that the scheduler had lost
}

// DrawPlans returns Draw's options with models that move, drawn from a separate stream. The plans are applied from
// outside or made by the schedulers themselves.
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

	o.drawHooks()
	return o
}

// moves are the plans of a run, one after the other. Either some models move once to the next sub-cluster, or one
// model moves repeatedly. It sees the engines only through their status.
type moves struct {
	c      *Cluster
	shift  []int // by model: its sub-cluster's number relative to its first
	next   int   // plans chosen
	done   int   // plans that ended
	number uint64
	begun  bool // the latest plan was applied
	killed bool
	undo   bool // the plan must be put back
	ended  bool
}

// movesModels reports whether plans of a run move models.
func (o *Options) movesModels() bool { return o.Moved > 0 || o.Again > 0 }

// loadsModels reports whether backends load models, for these plans or for those that schedulers make themselves.
func (o *Options) loadsModels() bool { return o.movesModels() || o.Epoch > 0 }

// moveLook is the interval at which moves checks the state of a plan.
const moveLook Duration = 200e6

// beginMoves applies plans from a tenth of the run on.
func (c *Cluster) beginMoves(span Duration) {
	if !c.o.movesModels() {
		return
	}
	c.moves = &moves{c: c, shift: make([]int, len(c.models)), number: 1}
	at := c.o.MoveAt
	if at == 0 {
		at = span / 10
	}

	c.after(at, c.moves.stepPlans)
	if len(c.schedulers) > 1 {
		c.sharePlans()
	}
}

// stepPlans applies the next plan when the previous one has ended. A plan whose scheduler died continues under the
// successor. Only if the scheduler died before it shared the plan is the plan applied again; with Undo it is put
// back.
func (m *moves) stepPlans() {
	c := m.c
	defer func() {
		if !m.ended && c.check.err == nil {
			c.after(moveLook, m.stepPlans)
		}
	}()

	// Ask the present leader, once all backends have registered with it.
	s := c.leader()
	if s == nil || s.connectedGPUs() < c.o.Backends*c.o.GPUs {
		return
	}

	now, err := s.engine.PlanStatus()
	if err != nil {
		c.check.fail("PlanStatus: %v", err)
		return
	}

	switch {
	case m.undo && now.Number == m.number && (now.State == engine.PlanApplying || now.State == engine.PlanApplied):
		m.c.report.Moves.Undone++
		if _, err := s.engine.RollBackPlan(); err != nil && !errors.Is(err, engine.ErrPlan) {
			c.check.fail("RollBackPlan: %v", err)
		}
		return

	case now.State == engine.PlanApplying || now.State == engine.PlanRollingBack:
		return

	case m.begun && now.Number == m.number:
		m.countPlan(&now)
		m.number, m.done, m.begun = m.number+1, m.done+1, false
	}

	if m.done == m.planCount() {
		m.ended = true
		return
	}

	if m.done == m.next {
		m.chooseModels()
	}

	// The plan died with the leader that had not shared it, so its successor gets it again.
	if m.killed {
		c.report.Moves.Anew++
	}
	m.applyChosen(s)
}

// applyChosen applies the chosen plan. It retries a refused plan under another number: backends may know of a plan
// that its scheduler shared with no one else.
func (m *moves) applyChosen(s *scheduler) {
	_, err := s.engine.ApplyPlan(m.c.planDocument(m.number, m.shift))

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

// planCount returns the number of plans of the run.
func (m *moves) planCount() int {
	if m.c.o.Again > 0 {
		return m.c.o.Again
	}
	return 1
}

// chooseModels picks the models that the next plan moves: models of middle popularity, equally many of every sub-cluster,
// so that the load stays even.
func (m *moves) chooseModels() {
	o := &m.c.o
	m.next++

	// Model k is in sub-cluster k modulo Clusters, so begin at a multiple of Clusters.
	first := len(m.shift) / 2 / o.Clusters * o.Clusters
	n := o.Moved
	if o.Again > 0 {
		n = 1
	}

	for k := first; k < min(first+n, len(m.shift)); k++ {
		// A plan to be undone moves back after it was cut short.
		m.shift[k]++
		m.c.report.Moves.Moved++
	}
	m.c.report.Moves.Share = float64(n) / float64(len(m.shift))
}

// countPlan counts a plan that has ended.
func (m *moves) countPlan(now *engine.PlanStatus) {
	r := &m.c.report.Moves
	r.Plans++
	r.Steps += now.Taken
	r.LeftOut += len(now.LeftOut)
}

// countPlacements counts the placements requested from backends. At the drawn count, while a plan is under way, the
// leader dies or a backend leaves for long.
func (c *Cluster) countPlacements(asked int) {
	before := c.placements
	c.placements += asked
	reaches := func(many int) bool { return before < many && c.placements >= many }

	if m := c.moves; m != nil && reaches(c.o.KillAt) {
		m.killed = true
		c.after(c.withinPlan(), m.killLeader)
	}

	if !c.calm && reaches(c.o.AwayAt) {
		c.after(c.withinPlan(), c.someBack().leaveForLong)
	}
}

// withinPlan returns the delay from the request of placements to the drawn moment of the plan, at its beginning or
// within it.
func (c *Cluster) withinPlan() Duration {
	return Duration(c.rng.IntN(2)) * c.within(0, 2*c.o.LoadTime)
}

// killLeader ends the leader.
func (m *moves) killLeader() {
	c := m.c
	s := c.leader()
	if s == nil || m.ended {
		return
	}

	c.report.Moves.Kills++

	// With Undo the successor puts back the previous placement.
	if c.o.Undo {
		m.undo = true
		clear(m.shift)
	}
	s.die(50e6)
}

// leader returns the scheduler that leads and is alive, or nil.
func (c *Cluster) leader() *scheduler {
	for _, s := range c.schedulers {
		if s.leads && !s.dead && s.pausedUntil <= c.now {
			return s
		}
	}
	return nil
}
