package engine

import (
	"testing"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/wire"
)

// fenced is a stage of two backends on which a plan that moves m to b has passed its fences and ordered the first
// load from b.
func fenced(t *testing.T) (*stage, []*loader) {
	t.Helper()
	s, all := two(t)
	if _, err := s.e.ApplyPlan(Plan{Number: 1, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		l.work(t)
	}
	s.run(s.clock.now + 500*ms)
	if asked := all[1].b.asked; len(asked) != 2 || asked[1].Op != wire.Load {
		t.Fatalf("b was asked for %+v, want a fence and a load", asked)
	}
	return s, all
}

// TestALoadIsOrderedAgainAfterAReconnect: the session of a backend ends during a load, and the backend is back before
// the plan is checked. The load is ordered again at once, and the plan ends as it would have, without waiting for a
// report that never comes.
func TestALoadIsOrderedAgainAfterAReconnect(t *testing.T) {
	s, all := fenced(t)
	h := all[1].b.said
	all[1].b.Close()
	all[1] = newLoader(s.mustBackend(h))
	began := s.clock.now
	s.run(s.clock.now + 500*ms)
	if asked := all[1].b.asked; len(asked) != 1 || asked[0].Op != wire.Load {
		t.Fatalf("after %v b was asked for %+v, want the load", s.clock.now-began, asked)
	}
	drive(t, s, s.frontend(), all)
	want := "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"
	if st, err := s.e.PlanStatus(); err != nil || len(st.LeftOut) != 0 || residentsOf(t, s.e) != want {
		t.Errorf("left out %+v, %v: %s\nwant %s", st.LeftOut, err, residentsOf(t, s.e), want)
	}
}

// TestAPlanWaitsForABackendThatIsAway: the link of a backend breaks during a load, and the backend is back two
// seconds later. Meanwhile no step is taken, because a model withdrawn elsewhere would have no GPU. Then the plan
// ends as it would have.
func TestAPlanWaitsForABackendThatIsAway(t *testing.T) {
	s, all := fenced(t)
	h := all[1].b.said
	all[1].b.Close()
	before := residentsOf(t, s.e)
	s.run(s.clock.now + 2000*ms)
	if got := residentsOf(t, s.e); got != before || len(all[0].b.asked) != 1 {
		t.Errorf("while it was away %s became %s, and a was asked for %+v", before, got, all[0].b.asked)
	}

	all[1] = newLoader(s.mustBackend(h))
	drive(t, s, s.frontend(), all)
	want := "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"
	if st, err := s.e.PlanStatus(); err != nil || len(st.LeftOut) != 0 || residentsOf(t, s.e) != want {
		t.Errorf("left out %+v, %v: %s\nwant %s", st.LeftOut, err, residentsOf(t, s.e), want)
	}
}

// TestAPlanKnowsABackendThatIsBackTooSoon: a backend's new session opens before the end of its old one is noticed, so
// for a while there are two sessions of its name. When the old one has gone, the plan continues with its GPUs.
func TestAPlanKnowsABackendThatIsBackTooSoon(t *testing.T) {
	s, all := fenced(t)
	old := all[1].b
	all[1] = newLoader(s.mustBackend(old.said))
	old.Close()
	drive(t, s, s.frontend(), all)
	want := "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"
	if st, err := s.e.PlanStatus(); err != nil || len(st.LeftOut) != 0 || residentsOf(t, s.e) != want {
		t.Errorf("left out %+v, %v: %s\nwant %s", st.LeftOut, err, residentsOf(t, s.e), want)
	}
}

// TestAPlanGoesOnWithoutABackendThatForgot: a backend returns after a reconnect without the model that it was
// loading. Its GPUs are lost to the plan, which ends with the model where it was.
func TestAPlanGoesOnWithoutABackendThatForgot(t *testing.T) {
	s, all := fenced(t)
	h := all[1].b.said
	h.Models = h.Models[2:] // only k is left
	all[1].b.Close()
	all[1] = newLoader(s.mustBackend(h))
	s.run(s.clock.now + 500*ms)
	st, err := s.e.PlanStatus()
	if err != nil || st.State != PlanApplied || len(st.LeftOut) == 0 {
		t.Errorf("%+v, %v: want the plan to end without the GPUs of b", st, err)
	}
	if got, want := residentsOf(t, s.e), "a/0[m:1 offered n:1 offered]90; a/1[m:1 offered n:1 offered]90; b/0[k:1 offered]50; b/1[k:1 offered]50"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestAnOfferOfWhatIsForgottenIsNotDueAgain: a step whose model is not on its GPU's backend must not stay due,
// because the engine repeats all due steps at once.
func TestAnOfferOfWhatIsForgottenIsNotDueAgain(t *testing.T) {
	s, all := fenced(t)
	r, gpu := &s.e.reg.rollout, int32(2)
	present := s.e.reg.presentOf(r)
	all[1].b.hello.Models[0].Info.Name = "another"
	s.e.reg.setOffers(r, present, []plan.Step{{Kind: plan.StepOffer, Model: 0, GPU: gpu}})
	if !r.plan.Lost(gpu) || r.plan.Lost(gpu+1) {
		t.Errorf("GPU %v lost: %v, the other one: %v", r.gpus[gpu], r.plan.Lost(gpu), r.plan.Lost(gpu+1))
	}
}
