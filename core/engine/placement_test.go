package engine

import (
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// TestAModelIsServedByTheGPUsThatHaveIt loads a model on a backend's GPUs one after another, and unloads it. Requests
// are refused before and after, and served in between by the GPU that has the model. The session and its other model
// are not affected.
func TestAModelIsServedByTheGPUsThatHaveIt(t *testing.T) {
	s := newStage(t, Options{})
	h := hello("b", 2, slope, "m", "later")
	h.Models[1].Profile, h.Models[1].Loaded = nil, []bool{false, false}
	b := s.mustBackend(h)
	f := s.frontend()
	report := func(gpu uint32, state wire.PlacementState) {
		t.Helper()
		if !b.Report([]wire.PlacementReport{{GPU: gpu, Model: 1, State: state, Text: "why"}}) {
			t.Fatalf("report of state %v was refused", state)
		}
	}
	ready := func(want bool) {
		t.Helper()
		if got := f.models["later"].Ready; got != want {
			t.Fatalf("ready %v, want %v", got, want)
		}
	}
	if err := s.e.Place("b", []wire.Placement{{Number: 5, Op: wire.Load, Model: 1}}); err != nil || len(b.asked) != 1 || b.asked[0].Number != 5 {
		t.Fatalf("place: %v, the backend was asked %+v", err, b.asked)
	}
	if err := s.e.Place("nobody", nil); err == nil || !strings.Contains(err.Error(), `backend "nobody": not connected`) {
		t.Errorf("a backend was asked that is not there: %v", err)
	}

	if !b.Offer([]wire.Loadable{{Number: 1, Model: wire.BackendModel{Info: h.Models[1].Info, Profile: slope}}}) {
		t.Fatal("an offer was refused")
	}
	report(0, wire.LoadFailed)
	ready(false)
	report(1, wire.Loaded)
	ready(true)
	f.ask(1, "later", 100*ms)
	f.ask(2, "m", 100*ms)
	s.run(s.clock.now + 200*ms)
	s.ended(1, "output")
	s.ended(2, "output")
	if n := s.e.gpu(0).batches.Load(); n > 1 || s.e.gpu(1).batches.Load()+n != 2 {
		t.Errorf("the GPU without the model ran %d of 2 batches", n)
	}
	report(0, wire.Loaded)
	if s.e.gpu(0).sub != s.e.gpu(1).sub {
		t.Errorf("GPUs with the same models are in the sub-clusters %d and %d", s.e.gpu(0).sub, s.e.gpu(1).sub)
	}

	report(1, wire.Unloading)
	ready(true)
	report(0, wire.Unloading)
	ready(false)
	f.ask(3, "later", 100*ms)
	f.ask(4, "m", 100*ms)
	s.run(s.clock.now + 200*ms)
	s.ended(3, model.NoBackend.String())
	s.ended(4, "output")
	report(1, wire.Unloaded)
	report(1, wire.Loaded)
	ready(true)
}

// TestGPUsChangeTheirSubClusterUnderLoad: while a second model comes and goes on one GPU after the other, every
// request for the first one is served, and no GPU gets more batches than it may hold.
func TestGPUsChangeTheirSubClusterUnderLoad(t *testing.T) {
	s := newStage(t, Options{Partitions: 2})
	h := hello("b", 3, slope, "m", "later")
	h.Models[1].Loaded = make([]bool, 3)
	b := s.mustBackend(h)
	f := s.frontend()
	last := uint64(0)
	for turn := range 30 {
		state := []wire.PlacementState{wire.Loaded, wire.Unloading}[turn/3%2]
		b.Report([]wire.PlacementReport{{GPU: uint32(turn % 3), Model: 1, State: state}})
		for range 40 {
			last++
			f.ask(last, "m", 60*ms)
			s.run(s.clock.now + ms)
		}
	}

	s.run(s.clock.now + 200*ms)
	for id := uint64(1); id <= last; id++ {
		s.ended(id, "output")
	}
	if st := s.e.Stats(); st.Models[0].Outcomes != [model.ReasonCount]uint64{} || len(st.Load) != 1 {
		t.Errorf("outcomes %v, sub-clusters %+v", st.Models[0].Outcomes, st.Load)
	}
}

// TestPlacementsThatMakeNoSense shows that invalid placements are refused without harm.
func TestPlacementsThatMakeNoSense(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	named := model.Info{Name: "x"}
	for _, l := range []wire.Loadable{{Number: 2, Model: wire.BackendModel{Info: named}}, {Number: 1}, {Number: 1 << 31, Model: wire.BackendModel{Info: named}},
		{Number: 1, Model: wire.BackendModel{Info: named, Profile: []time.Duration{-1}}}} {
		if b.Offer([]wire.Loadable{l}) {
			t.Errorf("%+v was taken", l)
		}
	}
	for _, r := range []wire.PlacementReport{{Model: 9, State: wire.Loaded}, {GPU: 1, State: wire.Loaded}} {
		if b.Report([]wire.PlacementReport{r}) {
			t.Errorf("%+v was taken", r)
		}
	}
	f := s.frontend()
	f.ask(1, "m", 100*ms)
	s.run(s.clock.now + 200*ms)
	s.ended(1, "output")
}
