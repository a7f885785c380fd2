package symphony

import (
	"context"
	"fmt"
	"strings"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// drawSLOs is figure 7.
func drawSLOs(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "fig7", "downbeat,symphony-printed,clockwork,clockwork-bare,nexus-1")
	if err != nil {
		return nil, err
	}
	d := &figure.Drawing{Header: goodputHeader}
	addGoodput(d, rows)

	for _, group := range []string{"poisson-even", "poisson-zipf", "gamma-even", "gamma-zipf"} {
		p := chart.Panel{Title: group, XLabel: "SLO, ms", YLabel: "goodput, r/s"}
		for _, r := range rows {
			var slo float64
			// Rows have only the setting's name, which contains the SLO.
			if n, _ := fmt.Sscanf(strings.TrimPrefix(r.Setting, "fig7-"+group+"-"), "%gms", &slo); n == 1 {
				p.Add(r.Policy, slo, r.Goodput)
			}
		}
		d.Panels = append(d.Panels, p)

		tight, loose := "fig7-"+group+"-15ms", "fig7-"+group+"-100ms"
		ratios := func(setting string) string {
			ours := findRow(rows, setting, "downbeat")
			return fmt.Sprintf("%.2f× Clockwork, %.2f× Nexus", over(ours, findRow(rows, setting, "clockwork")), over(ours, findRow(rows, setting, "nexus-1")))
		}
		d.Claims = append(d.Claims, figure.Claim{What: group + ": ahead at tight SLOs, alike at loose ones", Published: "no numbers",
			Ours: "at 15 ms " + ratios(tight) + "; at 100 ms " + ratios(loose) + " (0: the other keeps no model's SLO at any load)", Verdict: figure.NoNumber})
	}
	return d, nil
}

// drawAnalytic is table 4.
func drawAnalytic(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "table4", paperPolicies)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: goodputHeader, Panels: []chart.Panel{bars("table 4", rows)}}
	addGoodput(d, rows)

	for _, setting := range settingsOf(rows) {
		for _, name := range []string{"downbeat", "clockwork", "nexus-1"} {
			r := findRow(rows, setting, name)
			if r.Published == nil {
				continue
			}
			// A baseline should match the paper's; ours should be at least the paper's system.
			printed, holds := "", abs(r.Goodput / *r.Published - 1) < 0.1
			if name == "downbeat" {
				holds = r.Goodput >= *r.Published
				printed = fmt.Sprintf("; the printed policy %.0f", findRow(rows, setting, "symphony-printed").Goodput)
			}
			d.Claims = append(d.Claims, figure.Claim{What: setting + ", " + name + ", r/s", Published: fmt.Sprintf("%.0f", *r.Published),
				Ours: fmt.Sprintf("%.0f%s; bound %.0f", r.Goodput, printed, r.Bound), Verdict: figure.Judge(holds),
				Why: "the baselines have their best form here"})
		}
	}
	return d, nil
}

// drawBatches is figure 8.
func drawBatches(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "table4", "downbeat,symphony-printed,clockwork,nexus-1")
	if err != nil {
		return nil, err
	}
	d := &figure.Drawing{Header: []string{"setting", "policy", "batch", "share_of_requests"}}

	// The median batch size: half of the requests are in larger batches.
	for _, setting := range settingsOf(rows) {
		p := chart.Panel{Title: setting, XLabel: "batch size", YLabel: "share of requests up to it", YMax: 1}
		var middles []string
		for _, r := range rows {
			if r.Setting != setting {
				continue
			}

			sum, middle := 0.0, 0
			for b, share := range r.BatchShares() {
				if share > 0 {
					d.Add(setting, r.Policy, b, share)
				}
				if sum < 0.5 && sum+share >= 0.5 {
					middle = b
				}
				sum += share
				p.Add(r.Policy, float64(b), sum)
			}
			middles = append(middles, fmt.Sprintf("%s %d", r.Policy, middle))
		}
		d.Panels = append(d.Panels, p)
		d.Claims = append(d.Claims, figure.Claim{What: setting + ": the batch that half of the requests exceed", Published: map[bool]string{true: "Symphony 14, Nexus 6", false: "Symphony 8, Nexus 3"}[strings.Contains(setting, "resnet50")],
			Ours: strings.Join(middles, ", "), Verdict: figure.Beside, Why: "each at its own goodput; the paper says \"most\", not half"})
	}
	return d, nil
}

// drawDelays is figure 9.
func drawDelays(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "table4", "downbeat,symphony-printed,clockwork,nexus-1")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"setting", "policy", "percentile", "queueing_ms"}}

	for _, setting := range settingsOf(rows) {
		p := chart.Panel{Title: setting, XLabel: "ms from arrival to start", YLabel: "share of served requests", YMax: 1}

		middle := map[string]float64{}
		longest := map[string]float64{}
		for _, r := range rows {
			delays := r.QueueingMS()
			if r.Setting != setting || delays == nil {
				continue
			}

			for q, ms := range delays {
				d.Add(setting, r.Policy, q, ms)
				p.Add(r.Policy, ms, float64(q)/100)
			}
			middle[r.Policy], longest[r.Policy] = delays[50], delays[100]
		}
		d.Panels = append(d.Panels, p)

		// Compare with the better of the paper's two baselines.
		shorter := min(middle["nexus-1"], middle["clockwork"]) / max(middle["downbeat"], 1e-9)
		d.Claims = append(d.Claims,
			figure.Claim{What: setting + ": queueing shorter than the others'", Published: "2× to 3×", Ours: fmt.Sprintf("%.1f× at the median", shorter), Verdict: figure.Judge(shorter >= 2)},
			figure.Claim{What: setting + ": the longest queueing, Symphony and Nexus", Published: "Nexus SLO/2, Symphony less", Ours: fmt.Sprintf("%.1f and %.1f ms", longest["downbeat"], longest["nexus-1"]),
				Verdict: figure.Judge(longest["downbeat"] < longest["nexus-1"]), Why: "deferring uses the whole budget where it gains a batch"})
	}
	return d, nil
}

// drawStability is figure 10.
func drawStability(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "fig10", "downbeat,symphony-printed,symphony-windowed,clockwork,nexus-1,eager")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"setting", "policy", "load", "offered_rps", "good_rps", "bad_pct", "busy"}}
	beyond := chart.Panel{Title: "beyond the highest load", XLabel: "offered load over the policy's goodput", YLabel: "goodput over its own", XMax: 2, YMax: 1.1}
	below := chart.Panel{Title: "below it", XLabel: "offered load over the policy's goodput", YLabel: "busy share of the GPUs", XMax: 1, YMax: 1}

	for _, r := range rows {
		for _, pt := range r.Points {
			d.Add(r.Setting, r.Policy, pt.Load, pt.Offered, pt.Good, pt.BadPct, pt.Busy)
			if strings.Contains(r.Setting, "stability") {
				beyond.Add(r.Policy, pt.Load, pt.Good/r.Goodput)
			} else {
				below.Add(r.Policy, pt.Load, pt.Busy)
			}
		}
	}
	d.Panels = []chart.Panel{beyond, below}

	flat := func(policy string) float64 {
		if top := findRow(rows, "fig10-stability", policy).FlatTop; top != nil {
			return *top
		}
		return 0
	}
	gap := func(policy string) float64 {
		if g := findRow(rows, "fig10-utilization", policy).BusyGap; g != nil {
			return *g
		}
		return 1
	}
	d.Claims = []figure.Claim{
		{What: "flat at twice the load: Symphony and Nexus, not Clockwork", Published: "no numbers", Ours: fmt.Sprintf("%.3f of the best (as printed %.3f, windowed %.3f), Nexus %.3f, Clockwork %.3f",
			flat("downbeat"), flat("symphony-printed"), flat("symphony-windowed"), flat("nexus-1"), flat("clockwork")), Verdict: figure.NoNumber,
			Why: "the pseudocode as printed is not flat: that needs a window that slides over the queue"},
		{What: "busy in proportion to the load: Symphony alone", Published: "no numbers", Ours: fmt.Sprintf("within %.3f (as printed %.3f), Nexus %.3f, Clockwork %.3f",
			gap("downbeat"), gap("symphony-printed"), gap("nexus-1"), gap("clockwork")), Verdict: figure.NoNumber},
	}
	return d, nil
}
