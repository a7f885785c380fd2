package accuracy

import (
	"context"
	"math"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/family"
	"downbeat.dev/bench/figure"
	"downbeat.dev/core/arrivals"
)

const (
	batchingRate = 500 // requests/s of figure 6, which the paper does not state
	batchingSpan = 120 * time.Second
)

// publishedRatio is the ratio of the rules' violations to Proteus's in §6.4, for Poisson and Gamma arrivals.
var publishedRatio = map[string]string{"fixed-nexus": "2 to 3", "fixed-clipper": "3.8 to 4"}

// drawBatching is figure 6: violations of three batching rules on one fixed allocation, and of ours, under uniform,
// Poisson and very bursty arrivals at one rate.
func drawBatching(ctx context.Context, in *Inputs) (*Drawing, error) {
	d := &Drawing{Header: []string{"data", "arrivals", "policy", "violation_ratio", "over_proteus", "published_over_proteus", "effective_accuracy"}}
	arrivals := []struct {
		name string
		gaps arrivals.Gaps
	}{{"uniform", arrivals.Gaps{Shape: math.Inf(1)}}, {"poisson", arrivals.Poisson}, {"gamma-0.05", arrivals.Gaps{Shape: 0.05}}}

	for _, s := range in.byZoo() {
		p := chart.Panel{Title: s.Zoo.Name + ": 0 uniform, 1 Poisson, 2 Gamma 0.05", XLabel: "arrivals", YLabel: "violation ratio"}
		for x, a := range arrivals {
			// Each round replaces the trace and keeps the rest of the setting.
			s.Trace = family.MakeGaps(a.name, a.gaps, batchingRate, batchingSpan, in.Seed)
			c, err := in.compareSetting(ctx, s, "fixed-proteus,fixed-nexus,fixed-clipper,downbeat")
			if err != nil {
				return nil, err
			}

			// Report the other rules as multiples of Proteus's rule, the first one.
			reference := c.Results[0].ViolationRatio
			for _, r := range c.Results {
				published, over := "", ""
				if reference > 0 {
					over = figure.Number(r.ViolationRatio / reference)
				}

				// The paper gives no ratios for uniform arrivals.
				if x > 0 {
					published = publishedRatio[r.Policy]
				}
				d.add(s.Zoo.Name, a.name, r.Policy, r.ViolationRatio, over, published, r.EffectiveAccuracy)
				p.Add(r.Policy, float64(x), r.ViolationRatio)
			}
		}
		d.Panels = append(d.Panels, p)
	}
	return d, nil
}

// byZoo returns the first setting of each zoo.
func (in *Inputs) byZoo() []Setting {
	var out []Setting
	seen := make(map[string]bool)
	for _, s := range in.Settings {
		if !seen[s.Zoo.Name] {
			out = append(out, s)
		}
		seen[s.Zoo.Name] = true
	}
	return out
}
