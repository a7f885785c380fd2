package accuracy

import (
	"context"
	"time"

	"downbeat.dev/bench/chart"
)

// drawScales is figure 8: throughput, largest drop and violations over the SLO's scale.
func drawScales(ctx context.Context, in *Inputs) (*Drawing, error) {
	return drawSweep(ctx, in, "slo_scale", []float64{1, 1.5, 2, 2.5, 3, 3.5}, func(s *Setting, x float64) { s.Scale = x })
}

// drawLoadTimes shows the cost of loading for policies that host one variant per device. Ours keeps all variants
// resident.
func drawLoadTimes(ctx context.Context, in *Inputs) (*Drawing, error) {
	return drawSweep(ctx, in, "load_time_s", []float64{0, 0.5, 2, 4}, func(s *Setting, x float64) {
		s.LoadTime = time.Duration(x * float64(time.Second))
	})
}

// drawSweep compares the baselines over values of one parameter of the setting.
func drawSweep(ctx context.Context, in *Inputs, name string, values []float64, set func(*Setting, float64)) (*Drawing, error) {
	d := &Drawing{Header: []string{"trace", "data", "policy", name, "throughput_rps", "effective_accuracy", "largest_drop_1s", "largest_drop_10s",
		"violation_ratio", "worst_family", "worst_family_drop", "lp_bound_accuracy"}}
	for _, s := range in.Settings {
		title := s.Trace.Name + ", " + s.Zoo.Name
		panel := func(what string) chart.Panel {
			return chart.Panel{Title: title + ": " + what, XLabel: name, YLabel: what, XMin: values[0]}
		}

		throughput, drop, violations, accuracy := panel("requests/s"), panel("largest drop, 1 s"), panel("violation ratio"), panel("effective accuracy")
		accuracy.YMin = 0.9

		for _, x := range values {
			set(&s, x)
			c, err := in.compareSetting(ctx, s, baselines)
			if err != nil {
				return nil, err
			}

			for _, r := range c.Results {
				d.add(r.Trace, r.Data, r.Policy, x, r.ThroughputRPS, r.EffectiveAccuracy, r.LargestDrop1s, r.LargestDrop10s, r.ViolationRatio,
					r.WorstFamily, r.WorstFamilyDrop, r.LPBoundAccuracy)
				throughput.Add(r.Policy, x, r.ThroughputRPS)
				drop.Add(r.Policy, x, r.LargestDrop1s)
				violations.Add(r.Policy, x, r.ViolationRatio)
				accuracy.Add(r.Policy, x, r.EffectiveAccuracy)
			}

			accuracy.Add("lp-bound", x, c.Bounds.Accuracy)
		}
		d.Panels = append(d.Panels, throughput, drop, violations, accuracy)
	}
	return d, nil
}
