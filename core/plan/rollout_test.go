package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// playRollout takes due steps until none is left, and checks memory and offers after each. Loads and unloads of
// different backends run in parallel and end in a drawn order. Some loads fail, and some GPUs leave.
type playRollout struct {
	f       Fleet
	present Placement
	rng     *rand.Rand
	fail    float64 // of loads
	lose    float64 // of a GPU, after a step
	after   func(steps int) bool
	steps   int
	under   []Step // ordered, and not reported yet
	beside  int    // the largest number in progress at one time
}

func (p *playRollout) run(t *testing.T, r *Rollout) {
	t.Helper()
	for {
		due := r.Due(p.present, p.busy())
		if len(due) == 0 && len(p.under) == 0 {
			return
		}
		if p.steps++; p.steps > 10_000 {
			t.Fatal("the plan never ends")
		}
		if p.after != nil && p.after(p.steps) {
			return
		}
		for _, s := range due {
			p.take(t, s)
		}
		p.beside = max(p.beside, len(p.under))
		if len(due) == 0 || len(p.under) > 0 && p.rng.IntN(2) == 0 {
			p.end(t, r, p.rng.IntN(len(p.under)))
		}
		p.check(t, r)
		if p.rng.Float64() < p.lose {
			p.leave(r, int32(p.rng.IntN(len(p.f.Memory))))
		}
	}
}

// busy returns the GPUs with a step in progress.
func (p *playRollout) busy() (gpus []int32) {
	for _, s := range p.under {
		gpus = append(gpus, s.GPU)
	}
	return gpus
}

// take orders a load or an unload, and performs any other step at once.
func (p *playRollout) take(t *testing.T, s Step) {
	at := &p.present[s.Model][s.GPU]
	to := map[StepKind][2]Residence{StepLoad: {Absent, Loaded}, StepWarmUp: {Loaded, Warm}, StepOffer: {Warm, Offered}, StepWithdraw: {Offered, Warm}}[s.Kind]
	if s.Kind == StepUnload && (*at == Loaded || *at == Warm) {
		to = [2]Residence{*at, *at}
	}
	if *at != to[0] {
		t.Fatalf("%v model %d on GPU %d, where it is in state %d", s.Kind, s.Model, s.GPU, *at)
	}

	*at = to[1]
	if s.Kind == StepLoad || s.Kind == StepUnload {
		for _, x := range p.under {
			if p.f.hostOf(x.GPU) == p.f.hostOf(s.GPU) {
				t.Fatalf("%v model %d on GPU %d while its backend is at work on %v", s.Kind, s.Model, s.GPU, x)
			}
		}
		p.under = append(p.under, s)
	}
}

// end makes a backend report its step.
func (p *playRollout) end(t *testing.T, r *Rollout, i int) {
	t.Helper()
	s := p.under[i]
	p.under = slices.Delete(p.under, i, i+1)
	if s.Kind == StepUnload {
		p.present[s.Model][s.GPU] = Absent
		return
	}
	p.present[s.Model][s.GPU] = Warm
	if p.rng.Float64() < p.fail {
		p.present[s.Model][s.GPU] = Absent
		r.LeaveOut(p.present, s.Model, s.GPU, "tried")
	}
}

// leave removes a GPU and its step in progress.
func (p *playRollout) leave(r *Rollout, gpu int32) {
	p.under = slices.DeleteFunc(p.under, func(s Step) bool { return s.GPU == gpu })
	for m := range p.present {
		p.present[m][gpu] = Absent
	}
	r.Lose(p.present, gpu)
}

func (p *playRollout) check(t *testing.T, r *Rollout) {
	t.Helper()
	for g := range p.f.Memory {
		if need := p.f.needs(p.present, g); need > p.f.Memory[g] && !r.Lost(int32(g)) {
			t.Fatalf("step %d: %d bytes on GPU %d of %d", p.steps, need, g, p.f.Memory[g])
		}
	}
	for m := range p.present {
		if p.lose == 0 && p.fail == 0 && slices.Contains(r.Before[m], Offered) && !slices.Contains(p.present[m], Offered) && !slices.Contains(r.Gaps, int32(m)) {
			t.Fatalf("step %d: model %d is offered by no GPU", p.steps, m)
		}
	}
}

// drawServed draws placements in which each model is somewhere.
func drawServed(rng *rand.Rand, f Fleet, partial bool) (present, wanted Placement) {
	for {
		present, wanted = drawPlacement(rng, f, partial), drawPlacement(rng, f, false)
		if refuseOrphans(present, wanted) == nil {
			return present, wanted
		}
	}
}

// TestRolloutsEndAsWanted takes every due step of drawn plans. The end is the wanted placement, memory is never
// exceeded, and served models stay served except for the named gaps, nearly all of which are named in advance.
func TestRolloutsEndAsWanted(t *testing.T) {
	beside, unforeseen := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 60))
		f := drawFleet(rng, 0)
		present, wanted := drawServed(rng, f, true)
		r, steps, err := NewRollout(1, f, present, wanted)
		if err != nil {
			t.Fatal(err)
		}

		p := &playRollout{f: f, present: clonePlacement(present), rng: rng}
		p.run(t, r)
		if fmt.Sprint(p.present) != fmt.Sprint(wanted) || r.Left(p.present) != 0 {
			t.Fatalf("seed %d: ends with %v, want %v", seed, p.present, wanted)
		}
		beside = max(beside, p.beside)
		unforeseen += len(r.Gaps) - len(steps.Gaps)
	}
	if unforeseen > 2 {
		t.Errorf("%d gaps were not foreseen, want 2 at most", unforeseen)
	}
	if beside < 3 {
		t.Errorf("at most %d loads and unloads were under way side by side, want 3 or more", beside)
	}
}

// TestRolloutsSurviveEveryInterruption stops before each due step. Then the plan begins again from the present
// placement, or the first placement is wanted again.
func TestRolloutsSurviveEveryInterruption(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 61))
		f := drawFleet(rng, 0)
		present, wanted := drawServed(rng, f, false)
		for cut := 1; ; cut++ {
			r, _, err := NewRollout(1, f, present, wanted)
			if err != nil {
				t.Fatal(err)
			}
			p := &playRollout{f: f, present: clonePlacement(present), rng: rng, after: func(n int) bool { return n == cut }}
			p.run(t, r)
			done := p.steps < cut

			// A successor knows the wanted and the present placement, and nothing else.
			back := &playRollout{f: f, present: clonePlacement(p.present), rng: rng}
			r.RollBack(p.present)
			back.run(t, r)
			again, _, err := NewRollout(2, f, p.present, wanted)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, cut, err)
			}
			p.after = nil
			p.run(t, again)
			if fmt.Sprint(p.present) != fmt.Sprint(wanted) || fmt.Sprint(back.present) != fmt.Sprint(present) {
				t.Fatalf("seed %d, step %d: resumed to %v, want %v; rolled back to %v, want %v", seed, cut, p.present, wanted, back.present, present)
			}
			if done {
				break
			}
		}
	}
}

// TestRolloutsLoseNoModel makes a third of all loads fail, and then GPUs leave. Memory is never exceeded, plans end,
// and while no GPU leaves, every served model is served at the end.
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
		p.run(t, r)
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

// TestASubClusterOffersAsOne shows that a model that moves to two GPUs is offered by both at once, and withdrawn from
// both at once.
func TestASubClusterOffersAsOne(t *testing.T) {
	f := Fleet{Memory: []int64{100, 100, 100, 100}, Static: []int64{20}, Dynamic: []int64{10}}
	present := Placement{{Offered, Offered, Absent, Absent}}
	r, _, err := NewRollout(1, f, present, Placement{{Absent, Absent, Offered, Offered}})
	if err != nil {
		t.Fatal(err)
	}
	p := &playRollout{f: f, present: clonePlacement(present), rng: rand.New(rand.NewPCG(1, 1))}
	var acts []string
	for due := r.Due(p.present, nil); len(due) > 0; due = r.Due(p.present, nil) {
		acts = append(acts, fmt.Sprint(due[0].Kind, " on ", len(due)))
		for _, s := range due {
			p.take(t, s)
		}
		for len(p.under) > 0 {
			p.end(t, r, 0)
		}
	}
	want := []string{"load on 2", "offer on 2", "withdraw on 2", "unload on 2"}
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
