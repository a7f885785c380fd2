package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestAdmissionsKeepWhatTheyPromise(t *testing.T) {
	admitted, offered := 0, 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 60))
		s := Session{App: drawSeriesParallel(t, rng, 1+rng.IntN(5)), Rate: 1 + 60*rng.Float64(), Latency: time.Duration(10e6 + rng.IntN(15e7))}
		for j := range s.App.Stages {
			s.App.Stages[j].Kind = rng.IntN(2)
		}
		used, capacity := []float64{4 * rng.Float64(), 4 * rng.Float64()}, []float64{4, 4}
		var trial Trial
		if rng.IntN(2) == 0 { // a trial that is stricter than the demand test
			trial = func(rate float64, _ time.Duration, b StageBudgets) bool { return b.Total < 0.3 }
		}
		a, err := Admit(s, used, capacity, trial)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckAdmission(s, used, capacity, a); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if a.Admitted {
			admitted++
		} else if a.OfferRate > 0 || a.OfferLatency > 0 {
			offered++
		}

		// An offer is admitted when it is requested.
		if a.OfferRate > 0 {
			s.Rate = a.OfferRate
			if again, err := Admit(s, used, capacity, trial); err != nil || !again.Admitted {
				t.Errorf("seed %d: offered %v frames/s, and then %v (%v)", seed, s.Rate, again.Refusal, err)
			}
		}
	}
	if admitted < 20 || offered < 20 {
		t.Errorf("%d admitted, %d offers: the test tries too little", admitted, offered)
	}
}

func TestARefusalSaysWhatLacks(t *testing.T) {
	p := linear(t, 10*time.Millisecond, 0, 4)
	s := Session{App: Application{Stages: []Stage{{Profile: p, FanOut: 1}}}, Rate: 60, Latency: 50 * time.Millisecond}
	a, err := Admit(s, []float64{0.5}, []float64{1}, nil)
	var infeasible *InfeasibleError
	if err != nil || a.Admitted || !errors.As(a.Refusal, &infeasible) || abs(infeasible.Needed-1.1) > 1e-9 {
		t.Fatalf("%+v, %v; want 1.1 GPUs needed of 1", a, err)
	}
	if a.OfferRate < 49 || a.OfferRate > 50 || a.OfferLatency != 0 {
		t.Errorf("offers %v frames/s, %v; want 50, and that no latency helps", a.OfferRate, a.OfferLatency)
	}

	s.Latency = 8 * time.Millisecond
	a, err = Admit(s, []float64{0}, []float64{1}, nil)
	if err != nil || a.Admitted || !errors.As(a.Refusal, &infeasible) || infeasible.Unit != "ms" || a.OfferRate != 0 {
		t.Fatalf("%+v, %v; want that the latency is too short at any rate", a, err)
	}
	if a.OfferLatency < 10*time.Millisecond || a.OfferLatency > 10200*time.Microsecond {
		t.Errorf("offers %v, want 10 ms", a.OfferLatency)
	}

	never := func(float64, time.Duration, StageBudgets) bool { return false }
	s.Latency = 50 * time.Millisecond
	if a, err = Admit(s, []float64{0}, []float64{1}, never); err != nil || !errors.Is(a.Refusal, ErrTrial) || a.OfferRate+float64(a.OfferLatency) != 0 {
		t.Errorf("%+v, %v; want a refusal by trial, and no offers", a, err)
	}
}

func TestAdmitRefusesNonsense(t *testing.T) {
	p := linear(t, time.Millisecond, 0, 4)
	good := Session{App: Application{Stages: []Stage{{Profile: p, FanOut: 1}}}, Rate: 10, Latency: 50 * time.Millisecond}
	for want, call := range map[string]func() error{
		"kinds in use is 2":           func() error { _, err := Admit(good, []float64{0, 0}, []float64{1}, nil); return err },
		"kind 0: used":                func() error { _, err := Admit(good, []float64{math.NaN()}, []float64{1}, nil); return err },
		"rate is 0":                   func() error { s := good; s.Rate = 0; _, err := Admit(s, nil, nil, nil); return err },
		"rate is -1":                  func() error { s := good; s.Rate = -1; _, err := Admit(s, nil, nil, nil); return err },
		"latency is -1ns":             func() error { s := good; s.Latency = -1; _, err := Admit(s, nil, nil, nil); return err },
		"GPUs of kind 0: 0.01 GPUs n": func() error { a, _ := Admit(good, nil, nil, nil); return a.Refusal },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	p := linear(b, 1053*time.Microsecond, 5072*time.Microsecond, 64)
	app := Application{Hop: 100 * time.Microsecond, Stages: []Stage{{Profile: p, FanOut: 1, OthersRate: 200}, {Fixed: time.Millisecond, After: []int32{0}},
		{Profile: p, FanOut: 2, OthersRate: 300, After: []int32{1}}, {Profile: p, FanOut: 2, OthersRate: 300, After: []int32{1}}}}
	for name, capacity := range map[string]float64{"admitted": 10, "refused": 0.1} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Admit(Session{App: app, Rate: 30, Latency: 200 * time.Millisecond}, []float64{0}, []float64{capacity}, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
