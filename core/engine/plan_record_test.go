package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"downbeat.dev/core/wire"
)

// successor returns another scheduler, to which the same backends introduce themselves with their present models.
func successor(t *testing.T, all []*loader) (*stage, []*loader) {
	s := newStage(t, Options{Partitions: 2})
	var again []*loader
	for _, l := range all {
		h := l.b.hello
		h.Models = slices.Clone(h.Models)
		for n := range h.Models {
			h.Models[n].Loaded = slices.Clone(h.Models[n].Loaded)
			for i := range h.Models[n].Loaded {
				h.Models[n].Loaded[i] = l.loaded[wire.Placement{GPU: uint32(i), Model: uint32(n)}]
			}
		}
		again = append(again, newLoader(s.mustBackend(h)))
	}
	return s, again
}

// TestAPlanOutlivesItsScheduler: a successor in the middle of a plan continues it, or puts back the previous
// placement, and knows its number.
func TestAPlanOutlivesItsScheduler(t *testing.T) {
	moved := "a/0[n:1 offered]50; a/1[n:1 offered]50; b/0[k:1 offered m:1 offered]90; b/1[k:1 offered m:1 offered]90"
	for loads := range 3 {
		for _, back := range []bool{false, true} {
			first, all := two(t)
			before := residentsOf(t, first.e)
			if _, err := first.e.ApplyPlan(Plan{Number: 7, Models: moveM}); err != nil {
				t.Fatal(err)
			}
			for _, l := range all {
				l.work(t) // the fences
			}
			for range loads {
				first.run(first.clock.now + 300*ms)
				all[1].work(t)
			}
			if back {
				if _, err := first.e.RollBackPlan(); err != nil {
					t.Fatal(err)
				}
			}

			s, again := successor(t, all)
			if err := errors.Join(s.e.HearPlan(first.e.PlanRecord()), s.e.SetLeading(true)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.e.ApplyPlan(Plan{Number: 8}); !errors.Is(err, ErrPlan) {
				t.Errorf("another plan while one of the scheduler before waits: %v", err)
			}
			drive(t, s, s.frontend(), again)
			want := moved
			if back {
				want = before
			}
			if got := residentsOf(t, s.e); got != want {
				t.Errorf("after %d loads, rolled back %v: %s, want %s", loads, back, got, want)
			}
			if _, err := s.e.ApplyPlan(Plan{Number: 7, Models: moveM}); err == nil || !strings.Contains(err.Error(), "want more than 7") {
				t.Errorf("the number of the scheduler before: %v", err)
			}

			// The successor can also put back the placement that the previous scheduler found.
			if !back {
				if _, err := s.e.RollBackPlan(); err != nil {
					t.Fatal(err)
				}
				drive(t, s, s.frontend(), again)
				if got := residentsOf(t, s.e); got != before {
					t.Errorf("rolled back by the successor: %s, want %s", got, before)
				}
			}
		}
	}
}

// TestAStandbyAppliesNothing: a standby knows the plan, does not apply it, refuses others, and gives up its own plan
// when another scheduler leads. A plan whose GPUs do not return continues without them.
func TestAStandbyAppliesNothing(t *testing.T) {
	first, all := two(t)
	if _, err := first.e.ApplyPlan(Plan{Number: 7, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	s, again := successor(t, all[:1])
	if err := errors.Join(s.e.SetLeading(false), s.e.HearPlan(first.e.PlanRecord()), first.e.SetLeading(false)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*stage{s, first} {
		x.run(x.clock.now + 60_000*ms)
		st, err := x.e.PlanStatus()
		if err != nil || st.Number != 7 || st.State != PlanApplying || len(st.UnderWay) > 0 {
			t.Errorf("%+v, %v", st, err)
		}
		if _, err := x.e.ApplyPlan(Plan{Number: 9}); err == nil || !strings.Contains(err.Error(), "stands by") {
			t.Errorf("a plan for a standby: %v", err)
		}
	}
	if n := len(again[0].b.asked); n > 0 {
		t.Errorf("a standby asked for %d placements", n)
	}

	if err := s.e.SetLeading(true); err != nil {
		t.Fatal(err)
	}
	s.run(s.clock.now + 29_000*ms)
	if st, _ := s.e.PlanStatus(); st.State != PlanApplying {
		t.Errorf("before its GPUs have had time to come: %+v", st)
	}
	s.run(s.clock.now + 2_000*ms)
	again[0].work(t)
	s.run(s.clock.now + 500*ms)
	if st, _ := s.e.PlanStatus(); st.State != PlanApplied || st.Number != 7 {
		t.Errorf("without the GPUs that it wants: %+v", st)
	}
	if got, want := residentsOf(t, s.e), "a/0[m:1 offered n:1 offered]90; a/1[m:1 offered n:1 offered]90"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestNumbersGoOnAfterALoneScheduler: a restarted scheduler without a standby learns from a backend which plan was
// the latest. Its own plans get later numbers, and it still continues a record of the old plan that a standby brings.
func TestNumbersGoOnAfterALoneScheduler(t *testing.T) {
	s, all := two(t)
	if !all[0].b.Report([]wire.PlacementReport{{Number: wire.NumberOrder(41, 0), State: wire.Loaded}}) {
		t.Fatal("the report was refused")
	}
	if p, err := s.e.ProposePlan(PlanOptions{MoveShare: 1}); err != nil || p.Number != 42 || s.e.Stats().Plan != 41 {
		t.Errorf("a plan behind 41 has number %d, %v", p.Number, err)
	}
	for number, want := range map[uint64]string{41: "want more than 41", wire.PlanNumberMax + 1: "want at most"} {
		if _, err := s.e.ApplyPlan(Plan{Number: number, Models: moveM}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("plan %d: %v, want an error that says %q", number, err, want)
		}
	}
	if err := s.e.HearPlan(&PlanRecord{Number: 41, State: PlanApplied}); err != nil || s.e.PlanRecord() == nil {
		t.Errorf("the record of plan 41 is not taken: %v", err)
	}

	// Placements that a plan orders carry its number.
	s, all = two(t)
	if _, err := s.e.ApplyPlan(Plan{Number: 7, Models: moveM}); err != nil {
		t.Fatal(err)
	}
	if n, ok := wire.PlanOf(all[1].b.asked[0].Number); !ok || n != 7 {
		t.Errorf("a fence of plan 7 tells of plan %d, %v", n, ok)
	}
}
