package symphony

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/core/arrivals"
)

// drawGPUs is figure 11 (right), extended to 10,000 GPUs, with shorter runs for more GPUs.
func drawGPUs(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	policies, err := goodput.Policies("downbeat,symphony-printed,clockwork")
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: append([]string{"gpus", "per_gpu_rps"}, goodputHeader...)}
	p := chart.Panel{Title: "goodput per GPU", XLabel: "GPUs, powers of two", YLabel: "goodput, r/s and GPU"}
	first, last := 0.0, 0.0
	for _, gpus := range []int{8, 16, 32, 64, 128, 512, 2048, 10000} {
		// Beyond 128 GPUs a shorter span has as many requests, and only ours is run.
		short, with := *in, policies
		if gpus > 128 {
			short.Goodput.Seeds, short.Goodput.Span = 1, time.Second*time.Duration(max(1, 1024/gpus))
			with = policies[:1]
		}
		// The profile of table 4's ResNet50.
		e := entry("ResNet50", 100*time.Millisecond)
		e.Alpha, e.Beta = 1053*time.Microsecond, 5072*time.Microsecond
		rows, err := short.comparePolicies(ctx, []goodput.Setting{alike(fmt.Sprintf("gpus-%d", gpus), e, 20, gpus, arrivals.Poisson)}, with)
		if err != nil {
			return nil, err
		}

		for _, r := range rows {
			each := r.Goodput / float64(gpus)
			d.Add(gpus, each, r.Setting, r.Policy, r.Goodput, r.Bound, "", r.Busy, r.Batch, r.Seeds, r.SpanS)
			p.Add(r.Policy, log2(gpus), each)
		}
		if gpus == 32 {
			first = rows[0].Goodput / 32
		}
		last = rows[0].Goodput / float64(gpus)
	}

	d.Panels = []chart.Panel{p}
	d.Claims = []figure.Claim{{What: "goodput grows linearly with GPUs", Published: "no numbers", Ours: fmt.Sprintf("%.0f r/s and GPU at 32, %.0f at 10,000", first, last),
		Verdict: figure.NoNumber, Why: "in virtual time; figure 11 (left) shows what the scheduler itself can do per second"}}
	return d, nil
}

func log2(n int) float64 {
	x := 0.0
	for ; n > 1; n /= 2 {
		x++
	}
	return x
}

// drawNetwork is figure 13.
func drawNetwork(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "fig13", "downbeat,symphony-printed")
	if err != nil {
		return nil, err
	}
	d := &figure.Drawing{Header: append([]string{"slo_ms", "latency_us"}, goodputHeader...)}
	within := chart.Panel{Title: "as RDMA's", XLabel: "network latency, ms", YLabel: "goodput over that at 0", YMax: 1.05, YMin: 0.6}
	beyond := chart.Panel{Title: "as TCP's tail", XLabel: "network latency, ms", YLabel: "goodput over that at 0", YMax: 1.05, YMin: 0.6}

	// Rows are sorted by latency within an SLO, so the one at 0 comes first.
	base := map[string]float64{}
	losses := map[string]float64{}
	for _, r := range rows {
		var slo int
		var us float64
		if n, _ := fmt.Sscanf(r.Setting, "fig13-%dms-%gus", &slo, &us); n != 2 {
			continue
		}
		d.Add(slo, us, r.Setting, r.Policy, r.Goodput, r.Bound, "", r.Busy, r.Batch, r.Seeds, r.SpanS)
		if r.Policy != "downbeat" {
			continue
		}

		name := fmt.Sprintf("SLO %d ms", slo)
		if us == 0 {
			base[name] = r.Goodput
		}

		share := r.Goodput / base[name]

		// RDMA's latencies end near 100 µs; TCP's tail lies beyond.
		if us <= 100 {
			within.Add(name, us/1000, share)
		}
		beyond.Add(name, us/1000, share)
		losses[fmt.Sprintf("%d %g", slo, us)] = 1 - share
	}

	d.Panels = []chart.Panel{within, beyond}
	d.Claims = []figure.Claim{
		{What: "RDMA's latency costs little", Published: "marginally", Ours: fmt.Sprintf("%.1f %% at 20 ms and 100 µs", 100*losses["20 100"]), Verdict: figure.Judge(losses["20 100"] < 0.02)},
		{What: "TCP's tail costs much, most at tight SLOs", Published: "significantly", Ours: fmt.Sprintf("%.0f %% at 20 ms and 5 ms, %.0f %% at 100 ms", 100*losses["20 5000"], 100*losses["100 5000"]),
			Verdict: figure.Judge(losses["20 5000"] > 0.1 && losses["20 5000"] > losses["100 5000"])},
	}
	return d, nil
}
