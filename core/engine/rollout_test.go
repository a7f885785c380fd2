package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// loader performs the placements that a backend is ordered, one after another, as a backend does.
type loader struct {
	b      *emulated
	loaded map[wire.Placement]bool // by GPU and model
	refuse func(wire.Placement) bool
	served int // placements
}

func newLoader(b *emulated) *loader {
	l := &loader{b: b, loaded: map[wire.Placement]bool{}}
	for n := range b.hello.Models {
		for i := range b.hello.GPUs {
			l.loaded[wire.Placement{GPU: uint32(i), Model: uint32(n)}] = isLoaded(&b.hello.Models[n], i)
		}
	}
	return l
}

// work performs one placement, and reports whether there was one.
func (l *loader) work(t *testing.T) bool {
	t.Helper()
	if l.served == len(l.b.asked) {
		return false
	}
	p := l.b.asked[l.served]
	l.served++
	r := wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model}
	at := wire.Placement{GPU: p.GPU, Model: p.Model}
	states := []wire.PlacementState{wire.Loaded}
	switch {
	case p.Op == wire.Unload && l.loaded[at]:
		states = []wire.PlacementState{wire.Unloading, wire.Unloaded}
	case p.Op == wire.Unload:
		states = []wire.PlacementState{wire.Unloaded}
	case l.refuse != nil && l.refuse(p):
		states, r.Text = []wire.PlacementState{wire.LoadFailed}, "out of memory"
	}
	for _, r.State = range states {
		l.loaded[at] = r.State == wire.Loaded
		if !l.b.Report([]wire.PlacementReport{r}) {
			t.Fatalf("report %+v was refused", r)
		}
	}
	return true
}

// two is a stage with two backends of two GPUs each. a has the models m and n; b has k and can load all.
func two(t *testing.T) (*stage, []*loader) {
	s := newStage(t, Options{Partitions: 2})
	var all []*loader
	for i, has := range []string{"m n", "k"} {
		h := hello([]string{"a", "b"}[i], 2, slope, "m", "n", "k")
		h.Version = wire.Version
		h.Details = []wire.GPUDetail{{Kind: "x", Memory: 100}, {Kind: "x", Memory: 100}}
		for k := range h.Models {
			x := &h.Models[k]
			there := strings.Contains(has, x.Info.Name)
			x.Loaded, x.Info.Static, x.Info.Dynamic = []bool{there, there}, 40, 10
		}
		all = append(all, newLoader(s.mustBackend(h)))
	}
	return s, all
}

// drive lets time pass under load until a plan has ended. Every request gets an output.
func drive(t *testing.T, s *stage, f *front, all []*loader) {
	t.Helper()
	id := uint64(1)
	for ; ; id += 3 {
		for k, name := range []string{"m", "n", "k"} {
			f.ask(id+uint64(k), name, 100*ms)
		}
		s.run(s.clock.now + 2*ms)
		for _, l := range all {
			l.work(t)
		}
		if st, err := s.e.PlanStatus(); err != nil || st.State == PlanApplied || st.State == PlanRolledBack {
			break
		}
		if id > 30_000 {
			st, _ := s.e.PlanStatus()
			t.Fatalf("the plan never ends: %+v", st)
		}
	}
	s.run(s.clock.now + 200*ms)
	for ; id > 0; id-- {
		s.ended(id, "output")
	}
	clear(s.ends)
}

// residentsOf describes the models of a GPU, as an operator sees them.
func residentsOf(t *testing.T, e *Engine) string {
	t.Helper()
	st, err := e.PlanStatus()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, g := range st.GPUs {
		names := []string{}
		for _, m := range g.Models {
			names = append(names, m.Model+" "+m.State)
		}
		all = append(all, fmt.Sprintf("%s%v%d", g.GPU, names, g.Used))
	}
	return strings.Join(all, "; ")
}

var moveM = []PlannedModel{{Model: "m", Version: "1", GPUs: []string{"b/0", "b/1"}}}

// TestAPlanMovesAModelUnderLoad moves a model between two sub-clusters under load, and back. Every request is
// answered, and the GPUs of a sub-cluster stay together.
func TestAPlanMovesAModelUnderLoad(t *testing.T) {
	s, all := two(t)
	f := s.frontend()
	before := residentsOf(t, s.e)
	st, err := s.e.ApplyPlan(Plan{Number: 7, Models: moveM})
	if err != nil || st.State != PlanApplying || st.Left != 10 || st.Number != 7 {
		t.Fatalf("%+v, %v", st, err)
	}
	drive(t, s, f, all)
	want := "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"
	if got := residentsOf(t, s.e); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if s.e.gpu(2).sub != s.e.gpu(3).sub || s.e.gpu(0).sub != s.e.gpu(1).sub || s.e.gpu(0).sub == s.e.gpu(2).sub || s.e.gpu(0).epoch != 1 {
		t.Error("a sub-cluster whose GPUs changed alike was divided or replaced")
	}
	if _, err := s.e.RollBackPlan(); err != nil {
		t.Fatal(err)
	}
	drive(t, s, f, all)
	if got := residentsOf(t, s.e); got != before {
		t.Errorf("rolled back to %s\nwant %s", got, before)
	}
}

// TestAPlanGoesOnWithoutALoadThatFails leaves the model out on the GPU that cannot load it. If no GPU can, the model
// stays where it is.
func TestAPlanGoesOnWithoutALoadThatFails(t *testing.T) {
	for fails, want := range map[string]string{
		"0":  "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered]50; b/1[k:1 offered m:1 offered]90",
		"01": "a/0[m:1 offered n:1 offered]90; a/1[m:1 offered n:1 offered]90; b/0[k:1 offered]50; b/1[k:1 offered]50",
	} {
		s, all := two(t)
		all[1].refuse = func(p wire.Placement) bool { return strings.Contains(fails, fmt.Sprint(p.GPU)) }
		f := s.frontend()
		if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: moveM}); err != nil {
			t.Fatal(err)
		}
		drive(t, s, f, all)
		st, _ := s.e.PlanStatus()
		if got := residentsOf(t, s.e); got != want || len(st.LeftOut) != len(fails) || st.LeftOut[0].Why != "out of memory" {
			t.Errorf("GPUs %s fail: %s, left out %+v\nwant %s", fails, got, st.LeftOut, want)
		}
	}
}

// TestAPlanSurvivesABackendThatLeaves ends without the GPUs that left, and serves every model that some GPU still
// has.
func TestAPlanSurvivesABackendThatLeaves(t *testing.T) {
	s, all := two(t)
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		l.work(t) // the fences
	}
	s.run(s.clock.now + 500*ms)
	all[1].b.Close()
	s.run(s.clock.now + 4000*ms) // until then it might return
	st, err := s.e.PlanStatus()
	if err != nil || st.State != PlanApplied || len(st.LeftOut) != 4 {
		t.Errorf("%+v, %v", st, err)
	}
	if got, want := residentsOf(t, s.e), "a/0[m:1 offered n:1 offered]90; a/1[m:1 offered n:1 offered]90"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAPlanIsFencedAgainstOrdersBefore shows that a load ordered by a previous scheduler ends before the first load
// of the plan begins.
func TestAPlanIsFencedAgainstOrdersBefore(t *testing.T) {
	s, all := two(t)
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	s.run(s.clock.now + 500*ms)
	if b := all[1].b; len(b.asked) != 1 || b.asked[0].Op != wire.Unload {
		t.Fatalf("before the fence has been reported: %+v", b.asked)
	}
	all[1].work(t)
	s.run(s.clock.now + 500*ms)
	if b := all[1].b; len(b.asked) != 1 {
		t.Fatalf("before all fences have been reported: %+v", b.asked)
	}
	all[0].work(t)
	s.run(s.clock.now + 500*ms)
	if b := all[1].b; len(b.asked) != 2 || b.asked[1].Op != wire.Load {
		t.Errorf("behind the fence: %+v", b.asked)
	}
}

// TestLoadsOfDifferentBackendsGoSideBySide shows that two backends get one load each at the same time, and neither
// gets a second one before it has reported the first.
func TestLoadsOfDifferentBackendsGoSideBySide(t *testing.T) {
	s, all := two(t)
	swap := append(slices.Clone(moveM), PlannedModel{Model: "k", Version: "1", GPUs: []string{"a/0", "a/1", "b/0", "b/1"}})
	for _, l := range all {
		l.b.hello.Details[0].Memory, l.b.hello.Details[1].Memory = 200, 200
	}
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: swap}); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		l.work(t) // the fences
	}
	for n := 2; n <= 3; n++ {
		s.run(s.clock.now + 500*ms)
		for _, l := range all {
			if got := l.b.asked; len(got) != n || got[n-1].Op != wire.Load || got[n-1].GPU != uint32(n-2) {
				t.Errorf("%s was asked for %+v, want load %d of 2", l.b.hello.Name, got, n-1)
			}
		}
		if st, err := s.e.PlanStatus(); err != nil || len(st.UnderWay) != 2 || st.UnderWay[0].Act != "load" || st.UnderWay[0].Number == st.UnderWay[1].Number {
			t.Errorf("under way: %+v, %v", st.UnderWay, err)
		}
		for _, l := range all {
			l.work(t)
		}
	}
	drive(t, s, s.frontend(), all)
	if got, want := residentsOf(t, s.e), "a/0[k:1 offered n:1 offered]90; a/1[k:1 offered n:1 offered]90; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestASubClusterLoadsOnOneGPUAtATime: the GPUs of two backends are one sub-cluster, which is too small for two loads
// at the same time.
func TestASubClusterLoadsOnOneGPUAtATime(t *testing.T) {
	s := newStage(t, Options{})
	var all []*loader
	for _, name := range []string{"a", "b"} {
		h := hello(name, 1, slope, "m", "n")
		h.Version = wire.Version
		for k := range h.Models {
			h.Models[k].Loaded = []bool{k == 0}
		}
		all = append(all, newLoader(s.mustBackend(h)))
	}
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: []PlannedModel{{Model: "n", Version: "1", GPUs: []string{"a/0", "b/0"}}}}); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		l.work(t) // the fences
	}
	for n := range 2 {
		s.run(s.clock.now + 500*ms)
		if a, b := len(all[0].b.asked), len(all[1].b.asked); a != 2 || b != 1+n || s.e.reg.rollout.work[0].held == nil {
			t.Fatalf("asked for %d and %d placements, want 2 and %d", a, b, 1+n)
		}
		all[n].work(t)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	s, all := two(t)
	big := []PlannedModel{{Model: "m", Version: "1", GPUs: []string{"b/0"}}, {Model: "n", Version: "1", GPUs: []string{"b/0"}}}
	for want, p := range map[string]Plan{
		"older than what runs":           {Number: 0},
		"no backend has it":              {Number: 1, Models: []PlannedModel{{Model: "gone", Version: "1"}}},
		`GPU "c/0" is not here`:          {Number: 1, Models: []PlannedModel{{Model: "m", Version: "1", GPUs: []string{"c/0"}}}},
		"names it twice":                 {Number: 1, Models: append(slices.Clone(moveM), moveM...)},
		"at least one GPU":               {Number: 1, Models: []PlannedModel{{Model: "m", Version: "1"}}},
		"memory of GPU 2 for what is wa": {Number: 1, Models: big},
	} {
		if _, err := s.e.ApplyPlan(p); err == nil || !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}

	if _, err := s.e.RollBackPlan(); !errors.Is(err, ErrPlan) {
		t.Errorf("rolled back what was never applied: %v", err)
	}
	if _, err := s.e.ApplyPlan(Plan{Number: 3, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.e.ApplyPlan(Plan{Number: 4}); err == nil || !strings.Contains(err.Error(), "plan 3 is applying") {
		t.Errorf("two plans at once: %v", err)
	}
	drive(t, s, s.frontend(), all)
	if _, err := s.e.ApplyPlan(Plan{Number: 3}); err == nil || !strings.Contains(err.Error(), "want more than 3") {
		t.Errorf("an old plan: %v", err)
	}
}

// TestAProposedPlanIsApplied shows that the plan proposed for three models on one backend and an empty one uses both
// backends.
func TestAProposedPlanIsApplied(t *testing.T) {
	s := newStage(t, Options{})
	var all []*loader
	for i, name := range []string{"a", "b"} {
		h := hello(name, 2, slope, "m", "n", "k")
		h.Version = wire.Version
		for k := range h.Models {
			h.Models[k].Loaded, h.Models[k].Info.Static = []bool{i == 0, i == 0}, 40
		}
		all = append(all, newLoader(s.mustBackend(h)))
	}
	f := s.frontend()
	for id := range uint64(300) {
		f.ask(id+100_000, []string{"m", "n", "k"}[id%3], 100*ms)
		s.run(s.clock.now + ms)
	}
	p, err := s.e.ProposePlan(PlanOptions{Parts: 2, MoveShare: 1})
	if err != nil || p.Number != 1 || p.SubClusters != 2 || len(p.Steps) == 0 || len(p.Models) != 3 {
		t.Fatalf("%+v, %v", p, err)
	}

	// All loads are on b, which loads one model at a time; a load that nobody has timed counts a second.
	loads := 0
	for _, x := range p.Steps {
		if x.Act == "load" {
			loads++
		}
	}
	if loads == 0 || p.LoadSeconds != float64(loads) {
		t.Errorf("%v seconds of loads, want %d: %+v", p.LoadSeconds, loads, p.Steps)
	}

	if _, err := s.e.ApplyPlan(p.Plan); err != nil {
		t.Fatal(err)
	}
	clear(s.ends)
	drive(t, s, f, all)
	hasAssignment(t, s.e, p.Assignment)
	for _, m := range []string{"m", "n", "k"} {
		if got := residentsOf(t, s.e); strings.Count(got, m+":1 offered") != 2 {
			t.Errorf("model %s is not on the GPUs of one sub-cluster: %s", m, got)
		}
	}
	if _, err := s.e.ProposePlan(PlanOptions{Parts: 9}); err == nil || err.Error() != "GPU a/0 and 3 more: plan: number of sub-clusters is 9, want at most 4, the number of GPUs" {
		t.Errorf("nine sub-clusters of four GPUs: %v", err)
	}
}

// TestAPlanNamesTheModelThatFitsNowhere: operators know models by name, and not by their number in a plan.
func TestAPlanNamesTheModelThatFitsNowhere(t *testing.T) {
	s, all := two(t)
	for _, l := range all {
		l.b.hello.Models[1].Info.Static = 95
	}
	_, err := s.e.ProposePlan(PlanOptions{})
	if want := "GPU a/0 and 3 more: model n:1: plan: memory on the largest GPU: 105 bytes needed, 100 allowed: 5 too much"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// hasAssignment checks that the GPUs of each sub-cluster of a proposal offer its models and no others.
func hasAssignment(t *testing.T, e *Engine, parts []PlannedPart) {
	t.Helper()
	now, err := e.PlanStatus()
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]string{}
	for _, g := range now.GPUs {
		var models []string
		for _, m := range g.Models {
			models = append(models, m.Model)
		}
		slices.Sort(models)
		on[g.GPU] = strings.Join(models, " ")
	}

	for _, c := range parts {
		slices.Sort(c.Models)
		for _, g := range c.GPUs {
			if want := strings.Join(c.Models, " "); on[g] != want || c.Demand <= 0 {
				t.Errorf("GPU %s has %q, want %q, which ask for %v GPUs", g, on[g], want, c.Demand)
			}
		}
	}
	if len(parts) != 2 {
		t.Errorf("%d sub-clusters assigned, want 2", len(parts))
	}
}

// TestAModelThatIsWithheldIsNotServed shows that frontends do not hear of a model before the plan offers it.
func TestAModelThatIsWithheldIsNotServed(t *testing.T) {
	s, all := two(t)
	f := s.frontend()
	all[0].b.hello.Models = append(all[0].b.hello.Models, wire.BackendModel{Info: model.Info{Name: "new", Version: "1", Static: 5}, Profile: slope, Loaded: []bool{false, false}})
	all[0].b.ids = append(all[0].b.ids, noModel)
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: []PlannedModel{{Model: "new", Version: "1", GPUs: []string{"a/0", "a/1"}}}}); err != nil {
		t.Fatal(err)
	}
	all[1].work(t)
	for range 3 { // the fence, and the first GPU's load
		all[0].work(t)
		s.run(s.clock.now + 300*ms)
		if f.models["new"].Ready && len(all[0].b.asked) < 3 {
			t.Fatal("it is served before both GPUs have it")
		}
	}
	for range 3 {
		all[0].work(t)
		s.run(s.clock.now + 300*ms)
	}
	if !f.models["new"].Ready {
		t.Error("it is not served when both GPUs have it")
	}
}
