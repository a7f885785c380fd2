package plans

import (
	"errors"
	"testing"
	"time"

	"downbeat.dev/bench/goodput"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// TestSizeWithinOneGPUOfSimulation takes 30 profiles of both zoos and rates for 1 to some 30 GPUs.
// The scheduler in virtual time must keep 99 % of the requests in their SLO on one GPU more than
// plan.Size says, and must fail on two fewer.
func TestSizeWithinOneGPUOfSimulation(t *testing.T) {
	policies, err := goodput.Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	gpus := []float64{1.5, 3, 5, 8, 12, 20, 30}
	zoo := append(profile.GTX1080Ti(), profile.A100()...)
	tried := 0

	for i := 0; i < len(zoo) && tried < 30; i += 2 {
		e := zoo[i]
		p, err := e.Profile()
		if err != nil {
			t.Fatal(err)
		}
		rate := gpus[tried%len(gpus)] * float64(p.BatchMax(e.SLO*4/5)) / p.Exec(p.BatchMax(e.SLO*4/5)).Seconds()
		s, err := plan.Size(p, e.SLO, rate, plan.DefaultTargets())
		var infeasible *plan.InfeasibleError
		if errors.As(err, &infeasible) {
			t.Fatalf("%s: %v", e.Name, err)
		}
		tried++

		if bad := simulateBadShare(t, policies[0], e, s.GPUs+1, rate); bad > 0.01 {
			t.Errorf("%s at %.0f requests/s: %d GPUs by plan.Size, but %d lose %.2f %%", e.Name, rate, s.GPUs, s.GPUs+1, 100*bad)
		}
		if s.GPUs > 2 {
			if bad := simulateBadShare(t, policies[0], e, s.GPUs-2, rate); bad <= 0.01 {
				t.Errorf("%s at %.0f requests/s: %d GPUs by plan.Size, but %d lose only %.2f %%", e.Name, rate, s.GPUs, s.GPUs-2, 100*bad)
			}
		}
	}
	if tried < 30 {
		t.Errorf("%d profiles, want 30", tried)
	}
}

// simulateBadShare is the share of bad requests of one model alone on some GPUs, two seeds of 10 s.
func simulateBadShare(t *testing.T, policy goodput.Policy, e profile.Entry, gpus int, rate float64) float64 {
	t.Helper()
	setting := goodput.Setting{Name: e.Name, Models: []profile.Entry{e}, Share: arrivals.Even(1), GPUs: gpus, Gaps: arrivals.Poisson}
	o := goodput.DefaultOptions()
	o.Seeds, o.Span = 2, 10*time.Second
	w, err := goodput.Prepare(setting, o, rate*1.001)
	if err != nil {
		t.Fatal(err)
	}
	worst, _ := w.Run(policy, rate).BadShare()
	return worst
}
