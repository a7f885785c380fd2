package engine

import (
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// TestANumberNamesAnotherModel: a backend whose version has left uses its number for another one. A session that began with
// an earlier hello has the former one loaded: from the offer on neither is served, until a report says so.
func TestANumberNamesAnotherModel(t *testing.T) {
	s := newStage(t, Options{})
	h := hello("b", 1, slope, "m", "former")
	h.Models[1].Load = 7
	b := s.mustBackend(h)
	f := s.frontend()
	info := h.Models[1].Info
	info.Name = "present"
	if !b.Offer([]wire.Loadable{{Number: 1, Model: wire.BackendModel{Info: info, Profile: slope}}}) {
		t.Fatal("the offer was refused")
	}
	if f.models["former"].Ready || f.models["present"].Ready || b.hello.Models[1].Load != 0 {
		t.Errorf("after the offer: former ready %v, present ready %v, load time %v", f.models["former"].Ready, f.models["present"].Ready, b.hello.Models[1].Load)
	}
	f.ask(1, "former", 100*ms)
	s.run(s.clock.now + 200*ms)
	s.ended(1, model.NoBackend.String())

	b.Report([]wire.PlacementReport{{Model: 1, State: wire.Loaded}})
	f.ask(2, "present", 100*ms)
	s.run(s.clock.now + 200*ms)
	f.ask(3, "m", 100*ms)
	s.run(s.clock.now + 200*ms)
	s.ended(2, "output")
	s.ended(3, "output")
}

// TestAPlanLeavesOutAFormerModel: a plan loads a model whose number names another one meanwhile. The plan ends without it, and
// asks for nothing by that number.
func TestAPlanLeavesOutAFormerModel(t *testing.T) {
	s, all := two(t)
	p := Plan{Number: 1, Models: []PlannedModel{{Model: "k", Version: "1", GPUs: []string{"a/0", "b/0", "b/1"}}, {Model: "n", Version: "1", GPUs: []string{"a/1"}}}}
	if _, err := s.e.ApplyPlan(p); err != nil {
		t.Fatal(err)
	}
	a := all[0].b
	info := a.hello.Models[2].Info
	info.Name = "other"
	if !a.Offer([]wire.Loadable{{Number: 2, Model: wire.BackendModel{Info: info, Profile: slope}}}) {
		t.Fatal("the offer was refused")
	}
	for range 1000 {
		s.run(s.clock.now + 2*ms)
		all[0].work(t)
		all[1].work(t)
	}

	st, err := s.e.PlanStatus()
	if st.State != PlanApplied {
		t.Errorf("the plan is %s", st.State)
	}
	if err != nil || len(st.LeftOut) != 1 || st.LeftOut[0].Model != "k:1" || st.LeftOut[0].GPU != "a/0" || st.LeftOut[0].Why != modelGone {
		t.Errorf("left out: %+v (%v)", st.LeftOut, err)
	}
	for _, x := range a.asked {
		if x.Model == 2 && x.Op == wire.Load {
			t.Errorf("the backend was asked to load %+v", x)
		}
	}
}

// TestACatalogueForgetsForLearntVersions: versions that left an hour ago make room for new ones, though no backend comes or
// goes meanwhile.
func TestACatalogueForgetsForLearntVersions(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m", "v"))
	publish := func(name string) {
		info := b.hello.Models[1].Info
		info.Name = name
		b.Offer([]wire.Loadable{{Number: 1, Model: wire.BackendModel{Info: info, Profile: slope}}})
		b.Report([]wire.PlacementReport{{Model: 1, State: wire.Loaded}})
	}
	publish("second")

	// All other ids are of models that left long ago.
	g := &s.e.reg
	for id := uint32(len(g.models)); id < ModelsMax; id++ {
		g.models = append(g.models, &entry{info: model.Info{ID: id}, since: s.clock.now})
	}
	s.clock.now += sched.Time(keptMax) + 100*ms
	publish("third")
	s.clock.now += sched.Time(restMin)
	publish("fourth")
	if _, known := s.names()["fourth"]; !known {
		t.Errorf("a version is not served after %d others: %v", ModelsMax, s.names())
	}
}
