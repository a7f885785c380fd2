package sched

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestSkippedChecksDecideNothing: families that skip checks get the same batches at the same moments as families that
// double, as a Partition does that must send forecasts, whatever the rates, bursts and deadlines.
func TestSkippedChecksDecideNothing(t *testing.T) {
	skipped := 0
	for seed := range uint64(40) {
		want, none := runChecks(t, seed, true)
		got, some := runChecks(t, seed, false)
		if none > 0 {
			t.Fatalf("seed %d: %d checks were skipped although forecasts were asked for", seed, none)
		}
		if skipped += some; len(want) < 100 || !slices.Equal(got, want) {
			k := 0
			for k < min(len(got), len(want)) && got[k] == want[k] {
				k++
			}
			t.Fatalf("seed %d: %d batches with skipping and %d without are alike up to number %d", seed, len(got), len(want), k)
		}
	}
	if skipped < 10000 {
		t.Errorf("after %d arrivals a check was skipped, want 10000 at least: the test shows little", skipped)
	}
}

// checkedBatch is what the decision about a batch says.
type checkedBatch struct {
	now, start Time
	model      ModelID
	gpu        GPUID
	variant    uint16
	size       int
}

// runChecks returns the batches of five families on GPUs of one kind, and after how many arrivals a check was skipped.
func runChecks(t *testing.T, seed uint64, forecasting bool) (all []checkedBatch, skipped int) {
	random := rand.New(rand.NewPCG(seed, 1))
	const families = 5
	s := New(Options{})
	s.part.forecasting = forecasting
	service := Service{SLO: 100 * ms, Homes: []uint32{0}}
	for v := range 3 {
		slow := time.Duration(1<<v) * 50 * time.Microsecond
		service.Variants = append(service.Variants, Variant{0.9 + 0.03*float64(v), []*profile.Profile{line(t, slow, 10*slow, 64)}})
	}
	for m := range families {
		if err := s.AddService(0, ModelID(m), service); err != nil {
			t.Fatal(err)
		}
	}
	for g := range 4 + random.IntN(20) {
		if err := s.AddGPU(0, GPUID(g), 0); err != nil {
			t.Fatal(err)
		}
	}

	var take func(now Time)
	take = func(now Time) {
		sent, _ := s.Actions()
		for _, x := range slices.Clone(sent) {
			all = append(all, checkedBatch{now, x.ExecAt, x.Model, x.GPU, x.Variant, len(x.Requests)})
			if err := s.Complete(now, x.ID, x.GPU, x.Finish); err != nil {
				t.Fatal(err)
			}
			take(now)
		}
	}

	// The mean gap differs by a factor of 1000 from one phase to another, so that timers come before arrivals, too.
	now, gap := Time(0), 0.0
	for id := range 6000 {
		if id%1000 == 0 {
			gap = 2e7 / float64(int(1)<<random.IntN(11))
		}
		next := now.Add(Duration(random.ExpFloat64() * gap))
		for at := s.NextWake(); at <= next; at = s.NextWake() {
			now = max(now, at)
			s.Advance(now)
			take(now)
		}
		now = next

		budget := Duration(100 * time.Millisecond)
		if random.IntN(50) == 0 {
			budget = Duration(10+random.IntN(90)) * Duration(time.Millisecond)
		}
		model := ModelID(random.IntN(families))
		s.Enqueue(now, Request{ID: RequestID(id), Model: model, Deadline: now.Add(budget)})
		take(now)
		if random.IntN(100) == 0 {
			s.Cancel(now, model, RequestID(id), 0)
			take(now)
		}
		if s.part.models[model].family.skipped > 0 {
			skipped++
		}
	}
	return all, skipped
}
