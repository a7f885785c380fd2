package symphony

import (
	"context"
	"fmt"
	"sort"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/scale"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// drawSizes compares §4.2's rule for a new model, (1+1/N)·ℓ(b) < SLO and N·b/ℓ(b) ≥ λ, with the fewest GPUs that keep
// 99 % within the SLO in virtual time.
func drawSizes(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	policies, err := goodput.Policies("downbeat")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"model", "zoo", "rate_rps", "printed_gpus", "planned_gpus", "simulated_gpus"}}
	p := chart.Panel{Title: "GPUs for one model", XLabel: "GPUs needed in virtual time", YLabel: "GPUs by the rule"}
	within, printedWithin, tried := 0, 0, 0
	for _, zoo := range []struct {
		name    string
		entries []profile.Entry
	}{{"1080ti", profile.GTX1080Ti()}, {"a100", profile.A100()}} {
		// Fifteen models from the whole zoo keep the run short and cover all batching ratios.
		for _, e := range scale.Spread(zoo.entries, 15) {
			t, err := e.Profile()
			if err != nil {
				return nil, err
			}
			// Rates cycle through five levels from 1.5 to 30 GPUs, to judge small and large answers.
			fit := t.BatchMax(e.SLO * 4 / 5)
			rate := []float64{1.5, 4, 8, 16, 30}[tried%5] * float64(fit) / t.Exec(fit).Seconds()
			planned, err := plan.Size(t, e.SLO, rate, plan.DefaultTargets())
			if err != nil {
				return nil, err
			}

			// The printed rule has u* = 1: no GPU is kept in reserve.
			printed, err := plan.Size(t, e.SLO, rate, plan.Targets{{GPUs: 1, Share: 1}})
			if err != nil {
				return nil, err
			}
			needed, err := in.fewest(ctx, e, rate, 2*planned.GPUs+2, policies[0])
			if err != nil {
				return nil, err
			}

			tried++
			d.Add(e.Name, zoo.name, rate, printed.GPUs, planned.GPUs, needed)
			p.Add("planned", float64(needed), float64(planned.GPUs))
			p.Add("printed", float64(needed), float64(printed.GPUs))
			if planned.GPUs >= needed-1 && planned.GPUs <= needed+1 {
				within++
			}
			if printed.GPUs >= needed-1 && printed.GPUs <= needed+1 {
				printedWithin++
			}
			in.say("%s at %.0f r/s: printed %d, planned %d, needed %d", e.Name, rate, printed.GPUs, planned.GPUs, needed)
		}
	}

	for i := range p.Lines {
		p.Lines[i].Dots = true
	}
	d.Panels = []chart.Panel{p}
	d.Claims = []figure.Claim{{What: "GPUs for a new model's rate", Published: "no numbers", Ours: fmt.Sprintf("within one GPU of what virtual time needs: %d of %d with u*, %d as printed", within, tried, printedWithin),
		Verdict: figure.NoNumber, Why: "at rates that fill 1.5 to 30 GPUs"}}
	return d, nil
}

// fewest finds, by bisection, the fewest GPUs up to most with at most 1 % bad.
func (in *Inputs) fewest(ctx context.Context, e profile.Entry, rate float64, most int, policy goodput.Policy) (int, error) {
	var failed error

	// Bisection assumes that more GPUs never serve fewer requests in time.
	n := sort.Search(most, func(i int) bool {
		if failed = ctx.Err(); failed != nil {
			return true
		}
		w, err := goodput.Prepare(alike(e.Name, e, 1, i+1, arrivals.Poisson), in.Goodput, rate*1.001)
		if err != nil {
			failed = err
			return true
		}
		worst, _ := w.Run(policy, rate).BadShare()
		return worst <= in.Goodput.BadMax
	})
	return n + 1, failed
}
