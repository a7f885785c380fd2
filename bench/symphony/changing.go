package symphony

import (
	"context"
	"fmt"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/scale"
)

// drawChanging is figure 14, with rates of our own: the paper's come from videos that are not public.
func drawChanging(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	o := scale.DefaultOptions()
	o.Span, o.GPUs = in.Span, in.GPUs
	w, rows, err := scale.Run(ctx, o, scale.Autoscalers[:3], func(r scale.Row) {
		in.say("%s: %.3f of the clairvoyant GPU-seconds, worst window %.2f %% bad", r.Policy, r.Ratio, r.BadPctMax)
	})
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"policy", "second", "demand_gpus", "serving", "ordered", "advised", "requests", "bad"}}
	rate := chart.Panel{Title: "rates", XLabel: "seconds", YLabel: "requests/s"}
	gpus := chart.Panel{Title: "GPUs", XLabel: "seconds", YLabel: "GPUs that serve"}
	advice := chart.Panel{Title: "advice", XLabel: "seconds", YLabel: "GPUs advised"}
	bad := chart.Panel{Title: "bad rate", XLabel: "seconds", YLabel: "bad share of 10 s, up to 0.1", YMax: 0.1}
	for _, r := range rows {
		// Take the bad share over 10 s: a single second has too few requests.
		windowBad, window := 0, 0
		for s, x := range r.Samples {
			d.Add(r.Policy, s+1, x.Demand, x.Serving, x.Ordered, x.Wanted, x.Requests, x.Bad)
			if r.Policy == rows[0].Policy {
				// The rates are the same for every policy, so draw them once.
				rate.Add("all models", float64(s+1), float64(x.Requests))
			}
			gpus.Add(r.Policy, float64(s+1), float64(x.Serving))
			advice.Add(r.Policy, float64(s+1), float64(x.Wanted))
			windowBad, window = windowBad+x.Bad, window+x.Requests
			if (s+1)%10 == 0 {
				bad.Add(r.Policy, float64(s+1), min(0.1, float64(windowBad)/float64(max(1, window))))
				windowBad, window = 0, 0
			}
		}
	}
	d.Panels = []chart.Panel{rate, gpus, advice, bad}

	// Rows come in the order of scale.Autoscalers: the serving Scaler, the paper's rule, and one that knows the
	// rates.
	ours, paper, best := rows[0], rows[1], rows[2]
	d.Claims = []figure.Claim{
		{What: "low bad rate while the cluster is not overloaded", Published: "no numbers",
			Ours: fmt.Sprintf("worst window %.2f %%, all %.3f %%; the paper's rule %.2f %% and %.3f %%; clairvoyant %.2f %% and %.3f %%",
				ours.BadPctMax, ours.BadPct, paper.BadPctMax, paper.BadPct, best.BadPctMax, best.BadPct), Verdict: figure.NoNumber},
		{What: "consolidates GPUs while underloaded", Published: "no numbers",
			Ours:    fmt.Sprintf("%.3f of the clairvoyant GPU-seconds, the paper's rule %.3f (short of GPUs in %d windows of %d, ours in %d)", ours.Ratio, paper.Ratio, paper.Short, paper.Windows, ours.Short),
			Verdict: figure.NoNumber, Why: fmt.Sprintf("%d GPUs and %d models, at rates that we chose", o.GPUs, len(w.Models))},
	}
	return d, nil
}
