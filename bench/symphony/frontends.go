package symphony

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/median"
	"downbeat.dev/bench/policy"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// entry returns a model of table 5 with an SLO of its own.
func entry(name string, slo time.Duration) profile.Entry {
	zoo := profile.GTX1080Ti()
	e := zoo[slices.IndexFunc(zoo, func(e profile.Entry) bool { return e.Name == name })]
	e.SLO = slo
	return e
}

// alike returns a setting of n models with one profile.
func alike(name string, e profile.Entry, n, gpus int, gaps arrivals.Gaps) goodput.Setting {
	s := goodput.Setting{Name: name, Share: arrivals.Even(n), GPUs: gpus, Gaps: gaps}
	for i := range n {
		e.Name = fmt.Sprintf("%s-%02d", e.Name, i)
		s.Models = append(s.Models, e)
	}
	return s
}

// drawFrontends is figure 1. The paper states only the ranges of its settings; here they are all combinations of the
// ends and the middle of these ranges, with ResNet50s.
func drawFrontends(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"gpus", "models", "slo_ms", "frontends", "goodput_rps", "loss"}}

	var policies []goodput.Policy
	numbers := []int{1, 2, 4, 8, 16}
	for _, n := range numbers {
		// The figure shows the effect of more frontends: each knows less of the others' requests.
		policies = append(policies, goodput.Policy{Name: fmt.Sprintf("nexus-%d", n), New: func(w *sim.World) sim.Server { return policy.NewNexus(w, n) }})
	}

	panel := chart.Panel{Title: "Nexus, over the goodput with one frontend", XLabel: "frontends", YLabel: "goodput over that of one", YMin: 0.4, YMax: 1.05}
	var losses []float64 // of each setting, with 8 frontends
	for _, gpus := range []int{8, 24, 64} {
		for _, models := range []int{1, 8, 37} {
			for _, slo := range []int{20, 50, 100} {
				s := alike(fmt.Sprintf("%d GPUs, %d models, %d ms", gpus, models, slo), entry("ResNet50", time.Duration(slo)*time.Millisecond), models, gpus, arrivals.Poisson)
				rows, err := in.comparePolicies(ctx, []goodput.Setting{s}, policies)
				if err != nil {
					return nil, err
				}
				if rows[0].Goodput == 0 {
					continue // more models than the GPUs hold
				}
				for i, r := range rows {
					share := over(r, rows[0])
					d.Add(gpus, models, slo, numbers[i], r.Goodput, 1-share)
					panel.Add(s.Name, float64(numbers[i]), share)
					if numbers[i] == 8 {
						losses = append(losses, 1-share)
					}
				}
			}
		}
	}

	least, most := slices.Min(losses), slices.Max(losses)
	d.Panels = []chart.Panel{panel}
	d.Claims = []figure.Claim{{What: "loss with several frontends", Published: "5 % to 40 %",
		Ours:    fmt.Sprintf("with 8: %.0f %% to %.0f %%, median %.1f %%", 100*least, 100*most, 100*median.Of(losses)),
		Verdict: figure.Judge(least >= 0.04 && most >= 0.3),
		Why:     "our Nexus is in its best form: its plan leaves headroom, and a model that has a GPU to itself takes all that is queued"}}
	return d, nil
}
