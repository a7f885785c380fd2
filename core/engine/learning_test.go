package engine

import (
	"testing"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// spareStage is a stage with one backend of two GPUs and one of its models, without requests.
func spareStage(t *testing.T) (*stage, *emulated, *front) {
	s := newStage(t, Options{Ctrl: 1, Data: 1})
	b := s.mustBackend(hello("b", 2, slope, "m"))
	return s, b, s.frontend()
}

// endAll ends the steps ordered since the last call and returns their number.
func (b *emulated) endAll() int {
	steps := b.steps
	b.steps = nil
	for _, x := range steps {
		b.EndSpare([]wire.SpareEnd{{Number: x.Number}})
	}
	return len(steps)
}

func TestSpareWorkIsOrderedOneStepAtATime(t *testing.T) {
	s, b, f := spareStage(t)
	other := s.mustBackend(hello("c", 2, slope, "m"))
	b.OfferSpare([]wire.SpareOffer{{Work: 3, Step: 2e6, Weight: 1}})

	// Of four idle GPUs, the two of the other backend run none of its steps.
	if len(b.steps) != 1 || b.steps[0].Work != 3 || b.steps[0].Step != 2e6 || b.steps[0].Start < 0 || len(other.steps) != 0 {
		t.Fatalf("steps %+v and %+v, want one of work 3 for the backend that offered it", b.steps, other.steps)
	}
	for range 5 {
		s.run(s.clock.now + 2*ms)
		if n := b.endAll(); n != 1 || len(b.steps) != 1 {
			t.Fatalf("%d steps had run and %d follow, want 1 and 1", n, len(b.steps))
		}
	}

	// Timelines show when steps ran: each from the arrival of its order to the backend's report of its end.
	if ran := s.e.Stats().Steps; len(ran) != 5 || ran[4].End != s.clock.now || ran[4].Start != s.clock.now-2*ms+2 || ran[4].Size != 0 {
		t.Errorf("steps that ran %+v at %d, want 5 of 2 ms", ran, s.clock.now)
	}

	// Requests in between are answered in time.
	for id := uint64(1); id <= 20; id++ {
		f.ask(id, "m", 50*ms)
		s.run(s.clock.now + ms)
		b.endAll()
	}
	s.run(s.clock.now + 100*ms)
	for id := uint64(1); id <= 20; id++ {
		s.ended(id, "output")
	}

	// Withdrawn work gets nothing more after its step has ended.
	b.endAll()
	b.OfferSpare([]wire.SpareOffer{{Work: 3}})
	b.endAll()
	s.run(s.clock.now + 50*ms)
	if len(b.steps) != 0 {
		t.Errorf("steps %+v after the work was withdrawn", b.steps)
	}
}

// TestLearnerThatHangsIsSuspended shows that the GPU of a hanging learner serves again, and that its work gets no
// step until it is offered again.
func TestLearnerThatHangsIsSuspended(t *testing.T) {
	s, b, f := spareStage(t)
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Name: "learn m", Step: 5e6, Weight: 1}})
	hung := b.steps
	if len(hung) != 1 {
		t.Fatalf("steps %+v, want one", hung)
	}
	b.steps = nil

	for id := uint64(1); id <= 60; id++ {
		f.ask(id, "m", 50*ms)
		s.run(s.clock.now + ms)
	}
	s.run(s.clock.now + 100*ms)
	for id := uint64(1); id <= 60; id++ {
		s.ended(id, "output")
	}
	if len(b.steps) != 0 {
		t.Fatalf("steps %+v of work that hangs", b.steps)
	}
	x, err := s.e.Explain()
	if err != nil || len(x.Spare) != 1 || !x.Spare[0].Suspended || x.Spare[0].Name != "learn m" {
		t.Errorf("explained as %+v, %v; want it suspended", x.Spare, err)
	}

	// The report is too late to count. Work that is offered again continues.
	b.EndSpare([]wire.SpareEnd{{Number: hung[0].Number}, {Number: hung[0].Number}, {Number: 1 << 63}})
	if n := s.e.straySteps.Load(); n != 3 {
		t.Errorf("%d ends counted as stray, want 3", n)
	}
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 5e6, Weight: 1}})
	if len(b.steps) != 1 {
		t.Errorf("steps %+v after the work was offered anew, want one", b.steps)
	}
}

// TestSpareWorkFollowsGPUs shows that GPUs that change their sub-cluster continue with their backend's steps there,
// and that the offers of a backend that leaves are forgotten.
func TestSpareWorkFollowsGPUs(t *testing.T) {
	s, b, _ := spareStage(t)
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 1e6, Weight: 1}})
	before := b.gpus[0].sub

	more := wire.BackendModel{Info: hello("b", 1, slope, "n").Models[0].Info, Profile: slope, Loaded: []bool{false, false}}
	b.Offer([]wire.Loadable{{Number: 1, Model: more}})
	b.Report([]wire.PlacementReport{{GPU: 0, Model: 1, State: wire.Loaded}, {GPU: 1, Model: 1, State: wire.Loaded}})
	if b.gpus[0].sub == before {
		t.Fatal("the GPUs are where they were: the test shows nothing")
	}
	b.endAll()
	s.run(s.clock.now + 20*ms)
	if b.endAll() == 0 {
		t.Error("no step where the GPUs are now")
	}
	if got := s.e.ranker(before).s.SpareStats(); got.Lost != 0 {
		t.Errorf("the sub-cluster that the GPUs have left counts %+v", got)
	}

	sub := b.gpus[0].sub
	b.Close()
	steps := s.e.ranker(sub).s.SpareStats().Steps
	c := s.mustBackend(hello("c", 2, slope, "m", "n"))
	s.run(s.clock.now + 20*ms)
	if now := s.e.ranker(sub).s.SpareStats().Steps; now != steps || len(c.steps) > 0 || s.e.reg.foretelling {
		t.Errorf("%d steps were started for a backend that has left; forecasts %v", now-steps, s.e.reg.foretelling)
	}
}

// TestPinnedWorkStaysOnItsGPU shows that the steps of pinned work are ordered on one GPU, also when that GPU changes its
// sub-cluster and returns.
func TestPinnedWorkStaysOnItsGPU(t *testing.T) {
	s, b, _ := spareStage(t)
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 1e6, Weight: 1, GPU: 1}})
	more := wire.BackendModel{Info: hello("b", 1, slope, "n").Models[0].Info, Profile: slope, Loaded: []bool{false, false}}
	b.Offer([]wire.Loadable{{Number: 1, Model: more}})

	home := b.gpus[0].sub
	for _, state := range []wire.PlacementState{wire.Unloaded, wire.Loaded, wire.Unloaded} {
		b.Report([]wire.PlacementReport{{GPU: 0, Model: 1, State: state}})
		if moved := state == wire.Loaded; moved != (b.gpus[0].sub != home) {
			t.Fatalf("%v: sub-cluster %d, first %d: the test shows nothing", state, b.gpus[0].sub, home)
		}

		ran := 0
		for range 20 {
			for _, x := range b.steps {
				if x.GPU != 0 {
					t.Fatalf("%v: steps %+v, want them on GPU 0", state, b.steps)
				}
			}
			ran += b.endAll()
			s.run(s.clock.now + ms)
		}
		if ran < 5 {
			t.Errorf("%v: %d steps in 20 ms", state, ran)
		}
	}
}

// TestWorkThatBecomesPinnedLeavesTheOthers: work of two sub-clusters that is offered again for one GPU stays with the ranker
// of that GPU only, and leaves none behind when its backend goes.
func TestWorkThatBecomesPinnedLeavesTheOthers(t *testing.T) {
	s, b, _ := spareStage(t)
	more := wire.BackendModel{Info: hello("b", 1, slope, "n").Models[0].Info, Profile: slope, Loaded: []bool{false, false}}
	b.Offer([]wire.Loadable{{Number: 1, Model: more}})
	b.Report([]wire.PlacementReport{{GPU: 0, Model: 1, State: wire.Loaded}})
	if b.gpus[0].sub == b.gpus[1].sub {
		t.Fatal("one sub-cluster: the test shows nothing")
	}

	other := s.e.ranker(b.gpus[1].sub)
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 1e6, Weight: 1}})
	if !other.s.WantsSpare() {
		t.Fatal("the work was not offered there: the test shows nothing")
	}
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: 1e6, Weight: 1, GPU: 1}})
	if other.s.WantsSpare() {
		t.Error("the other GPU's ranker still has the work")
	}
}

// TestSpareOffersThatMakeNoSense shows that invalid offers cost the backend nothing else.
func TestSpareOffersThatMakeNoSense(t *testing.T) {
	s, b, f := spareStage(t)
	for _, o := range []wire.SpareOffer{{Work: 1, Step: -1, Weight: 1}, {Work: 1, Step: int64(sched.SpareStepMost) + 1, Weight: 1},
		{Work: 1, Step: 1e6, Weight: 1e7}, {Work: 1 << 16, Step: 1e6, Weight: 1}, {Work: 1, Step: 1e6, Weight: 1, GPU: 3}, {Work: 9}} {
		if !b.OfferSpare([]wire.SpareOffer{o}) {
			t.Errorf("the session ended for %+v", o)
		}
	}
	if len(b.steps) != 0 {
		t.Errorf("steps %+v", b.steps)
	}
	f.ask(1, "m", 50*ms)
	s.run(100 * ms)
	s.ended(1, "output")
}
