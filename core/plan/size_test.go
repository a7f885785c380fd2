package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

const ms = time.Millisecond

func linear(t testing.TB, alpha, beta time.Duration, batches int) *profile.Profile {
	t.Helper()
	p, err := profile.Linear(alpha, beta, batches)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSizeIsTable4 compares Size with the analytic column of Symphony's table 4.
func TestSizeIsTable4(t *testing.T) {
	whole := Targets{{GPUs: 1, Share: 1}}
	for _, c := range []struct {
		alpha, beta, slo time.Duration
		rate             float64
		batch            int
	}{
		{1053 * time.Microsecond, 5072 * time.Microsecond, 25 * ms, 5839, 16},
		{5090 * time.Microsecond, 18368 * time.Microsecond, 70 * ms, 1083, 8},
	} {
		s, err := Size(linear(t, c.alpha, c.beta, 100), c.slo, c.rate, whole)
		if err != nil || s.GPUs != 8 || s.Batch != c.batch || math.Abs(s.Capacity-c.rate) > 1 {
			t.Errorf("%v/%v: %+v, %v; want 8 GPUs with batches of %d", c.alpha, c.beta, s, err, c.batch)
		}
	}
}

func TestSizeAgainstEveryBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		p := linear(t, time.Duration(1+rng.IntN(5e6)), time.Duration(rng.IntN(2e7)), 1+rng.IntN(80))
		slo := time.Duration(1 + rng.IntN(1e8))
		rate := math.Exp(rng.Float64() * 12)
		s, err := Size(p, slo, rate, DefaultTargets())
		var infeasible *InfeasibleError
		if errors.As(err, &infeasible) {
			if p.Exec(1) < slo && infeasible.Unit == "ms" {
				t.Fatalf("ℓ(1) = %v fits %v, and yet: %v", p.Exec(1), slo, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckSize(p, slo, rate, DefaultTargets(), s); err != nil {
			t.Fatalf("ℓ(1) = %v, ℓ(2) = %v, SLO %v, %v requests/s: %+v: %v", p.Exec(1), p.Exec(2), slo, rate, s, err)
		}
	}
}

// TestSizeOfABendingProfile has a profile that is slower per request at its largest batch.
func TestSizeOfABendingProfile(t *testing.T) {
	p, err := profile.New([]time.Duration{10 * ms, 11 * ms, 12 * ms, 40 * ms})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Size(p, 100*ms, 240, Targets{{GPUs: 1, Share: 1}})
	if err != nil || s.Batch != 3 || s.GPUs != 1 {
		t.Errorf("%+v, %v; want one GPU with batches of 3, not of 4", s, err)
	}
}

func TestSizeRefuses(t *testing.T) {
	p := linear(t, ms, 5*ms, 10)
	targets := DefaultTargets()
	for want, call := range map[string]func() error{
		"rate is NaN":      func() error { _, err := Size(p, 25*ms, math.NaN(), targets); return err },
		"rate is +Inf":     func() error { _, err := Size(p, 25*ms, math.Inf(1), targets); return err },
		"rate is -1":       func() error { _, err := Size(p, 25*ms, -1, targets); return err },
		"SLO is 0s":        func() error { _, err := Size(p, 0, 1, targets); return err },
		"profile is":       func() error { _, err := Size(nil, 25*ms, 1, targets); return err },
		"targets is empty": func() error { _, err := Size(p, 25*ms, 1, nil); return err },
		"target 1: GPUs":   func() error { _, err := Size(p, 25*ms, 1, Targets{{4, 1}, {2, 1}}); return err },
		"share is NaN":     func() error { _, err := Size(p, 25*ms, 1, Targets{{4, math.NaN()}}); return err },
		"1 too much":       func() error { _, err := Size(p, 5*ms, 1, targets); return err },
		"rate on 1048576":  func() error { _, err := Size(p, 25*ms, 1e12, targets); return err },
		"budget against":   func() error { _, _, err := Cost(p, 5*ms, 1); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if s, err := Size(p, 25*ms, 0, targets); err != nil || s.GPUs != 0 {
		t.Errorf("rate 0: %+v, %v; want no GPU", s, err)
	}
}

func TestCostIsTheTargetBatch(t *testing.T) {
	p := linear(t, ms, 5*ms, 64)
	// 1,000 requests/s: (b−1) ms + b ms + 5 ms ≤ 25 ms.
	if c, b, err := Cost(p, 25*ms, 1000); err != nil || b != 10 || math.Abs(c-0.0015) > 1e-12 {
		t.Errorf("cost %v at batch %d, %v; want 1.5 ms at 10", c, b, err)
	}
	if c, b, err := Cost(p, 25*ms, 0); err != nil || b != 1 || math.Abs(c-0.006) > 1e-12 {
		t.Errorf("cost %v at batch %d, %v; want ℓ(1) of a model that nobody asks", c, b, err)
	}
}

func TestTargetsCarryTheirDemand(t *testing.T) {
	for _, targets := range []Targets{DefaultTargets(), {{1, 0.9}, {4, 0.3}, {5, 1}}} {
		for demand := 0.0; demand < 70; demand += 0.13 {
			n := targets.GPUsFor(demand)
			if demand > targets.At(n)*float64(n)*(1+1e-9) {
				t.Errorf("%d GPUs do not carry %v", n, demand)
			}
			for fewer := int(math.Ceil(demand)); fewer < n; fewer++ {
				if demand <= targets.At(fewer)*float64(fewer) {
					t.Errorf("%v needs %d GPUs, not %d", demand, fewer, n)
				}
			}
		}
	}
}
