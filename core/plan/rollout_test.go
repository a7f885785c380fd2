package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// playRollout takes the steps that are due until none is, and checks memory and offers after each. Some loads fail, and
// some GPUs leave. It returns what is present at the end.
type playRollout struct {
	f       Fleet
	present Placement
	rng     *rand.Rand
	fail    float64 // of loads
	lose    float64 // of a GPU, after a step
	after   func(steps int) bool
	steps   int
}

func (p *playRollout) run(t *testing.T, r *Rollout, gaps []int32) {
	t.Helper()
	for {
		due := r.Due(p.present)
		if len(due) == 0 {
			return
		}
		if p.steps++; p.steps > 10_000 {
			t.Fatal("the plan never ends")
		}
		if p.after != nil && p.after(p.steps) {
			return
		}
		for _, s := range due {
			p.take(t, r, s)
		}
		p.check(t, r, gaps)
		if p.rng.Float64() < p.lose {
			g := p.rng.IntN(len(p.f.Memory))
			for m := range p.present {
				p.present[m][g] = Absent
			}
			r.Lose(p.present, int32(g))
		}
	}
}

func (p *playRollout) take(t *testing.T, r *Rollout, s Step) {
	at := &p.present[s.Model][s.GPU]
	to := map[StepKind][2]Residence{StepLoad: {Absent, Loaded}, StepWarmUp: {Loaded, Warm}, StepOffer: {Warm, Offered}, StepWithdraw: {Offered, Warm}}[s.Kind]
	if s.Kind == StepUnload && (*at == Loaded || *at == Warm) {
		to = [2]Residence{*at, Absent}
	}
	if *at != to[0] {
		t.Fatalf("%v model %d on GPU %d, where it is in state %d", s.Kind, s.Model, s.GPU, *at)
	}

	*at = to[1]
	if s.Kind == StepWarmUp && p.rng.Float64() < p.fail {
		*at = Absent
		r.LeaveOut(p.present, s.Model, s.GPU, "tried")
	}
}

func (p *playRollout) check(t *testing.T, r *Rollout, gaps []int32) {
	t.Helper()
	for g := range p.f.Memory {
		if need := p.f.needs(p.present, g); need > p.f.Memory[g] && !r.Lost(int32(g)) {
			t.Fatalf("step %d: %d bytes on GPU %d of %d", p.steps, need, g, p.f.Memory[g])
		}
	}
	for m := range p.present {
		if p.lose == 0 && p.fail == 0 && slices.Contains(r.Before[m], Offered) && !slices.Contains(p.present[m], Offered) && !slices.Contains(gaps, int32(m)) {
			t.Fatalf("step %d: model %d is offered by no GPU", p.steps, m)
		}
	}
}

// served draws placements that have the same models somewhere, each.
func drawServed(rng *rand.Rand, f Fleet, partial bool) (present, wanted Placement) {
	for {
		present, wanted = drawPlacement(rng, f, partial), drawPlacement(rng, f, false)
		if refuseOrphans(present, wanted) == nil {
			return present, wanted
		}
	}
}

// TestRolloutsEndAsWanted takes every due step of drawn plans: the end is what was wanted, memory was never exceeded, and
// what was served is served all the time but for the gaps that were named.
func TestRolloutsEndAsWanted(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 60))
		f := drawFleet(rng, 0)
		present, wanted := drawServed(rng, f, true)
		r, steps, err := NewRollout(1, f, present, wanted)
		if err != nil {
			t.Fatal(err)
		}

		p := &playRollout{f: f, present: clonePlacement(present), rng: rng}
		p.run(t, r, steps.Gaps)
		if fmt.Sprint(p.present) != fmt.Sprint(wanted) || r.Left(p.present) != 0 {
			t.Fatalf("seed %d: ends with %v, want %v", seed, p.present, wanted)
		}
	}
}

// TestRolloutsSurviveEveryInterruption stops before each due step; then the plan is begun anew from what is present,
// or what was there at first is wanted again.
func TestRolloutsSurviveEveryInterruption(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 61))
		f := drawFleet(rng, 0)
		present, wanted := drawServed(rng, f, false)
		for cut := 1; ; cut++ {
			r, steps, err := NewRollout(1, f, present, wanted)
			if err != nil {
				t.Fatal(err)
			}
			p := &playRollout{f: f, present: clonePlacement(present), rng: rng, after: func(n int) bool { return n == cut }}
			p.run(t, r, steps.Gaps)
			done := p.steps < cut

			// Whoever comes after knows the wanted placement and what is present, and nothing else.
			back := &playRollout{f: f, present: clonePlacement(p.present), rng: rng}
			r.RollBack(p.present)
			every := allModels(f)
			back.run(t, r, every)
			again, _, err := NewRollout(2, f, p.present, wanted)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, cut, err)
			}
			p.after = nil
			p.run(t, again, every)
			if fmt.Sprint(p.present) != fmt.Sprint(wanted) || fmt.Sprint(back.present) != fmt.Sprint(present) {
				t.Fatalf("seed %d, step %d: resumed to %v, want %v; rolled back to %v, want %v", seed, cut, p.present, wanted, back.present, present)
			}
			if done {
				break
			}
		}
	}
}

func allModels(f Fleet) (all []int32) {
	for m := range f.Static {
		all = append(all, int32(m))
	}
	return all
}

// TestRolloutsLoseNoModel has a third of all loads fail, and then GPUs leave: memory is never exceeded, plans end, and as
// long as no GPU leaves every model that was served is served at the end.
func TestRolloutsLoseNoModel(t *testing.T) {
	left := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 62))
		f := drawFleet(rng, 600)
		present, wanted := drawServed(rng, f, false)
		r, steps, err := NewRollout(1, f, present, wanted)
		if err != nil {
			t.Fatal(err)
		}
		p := &playRollout{f: f, present: clonePlacement(present), rng: rng, fail: 0.3}
		if seed%2 == 0 {
			p.lose = 0.05
		}
		p.run(t, r, steps.Gaps)
		left += len(r.LeftOut)
		for m := range present {
			if p.lose == 0 && len(steps.Gaps) == 0 && slices.Contains(present[m], Offered) && !slices.Contains(p.present[m], Offered) {
				t.Fatalf("seed %d: model %d ends nowhere: %+v", seed, m, r.LeftOut)
			}
		}
	}
	if left == 0 {
		t.Error("nothing was left out: the test tries too little")
	}
}

// TestASubClusterOffersAsOne: a model that moves to two GPUs is offered by both at once, and withdrawn from both at once.
func TestASubClusterOffersAsOne(t *testing.T) {
	f := Fleet{Memory: []int64{100, 100, 100, 100}, Static: []int64{20}, Dynamic: []int64{10}}
	present := Placement{{Offered, Offered, Absent, Absent}}
	r, _, err := NewRollout(1, f, present, Placement{{Absent, Absent, Offered, Offered}})
	if err != nil {
		t.Fatal(err)
	}
	p := &playRollout{f: f, present: clonePlacement(present), rng: rand.New(rand.NewPCG(1, 1))}
	var acts []string
	for due := r.Due(p.present); len(due) > 0; due = r.Due(p.present) {
		acts = append(acts, fmt.Sprint(due[0].Kind, " on ", len(due)))
		for _, s := range due {
			p.take(t, r, s)
		}
	}
	want := []string{"load on 1", "warm up on 1", "load on 1", "warm up on 1", "offer on 2", "withdraw on 2", "unload on 1", "unload on 1"}
	if !slices.Equal(acts, want) {
		t.Errorf("%v, want %v", acts, want)
	}
}

func TestAPlanThatEndsAModelIsRefused(t *testing.T) {
	f := Fleet{Memory: []int64{100}, Static: []int64{20}, Dynamic: []int64{10}}
	if _, _, err := NewRollout(1, f, Placement{{Offered}}, Placement{{Absent}}); err == nil || !strings.Contains(err.Error(), "model 0") {
		t.Errorf("error %v, want one that names the model", err)
	}
}
