package sessions

import (
	"context"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// tightApps are the applications whose latencies the paper sets close to their execution time, with its latest
// frames.
var tightApps = []struct{ name, over string }{{"actdet", "11.3 %"}, {"caption", "14.9 %"}, {"en2ge", "4.8 %"}}

// tightness are the latencies in t9, relative to a frame's time alone: the paper does not state the value. Its claims
// use toldTightness.
var tightness = []float64{1.2, 1.5, toldTightness, 3}

const toldTightness = 2.0

// drawTight draws text result 9: f9 with tight latencies for three of its applications.
func drawTight(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"policy", "latency_over_alone", "application", "sessions", "finish_pct", "over_pct"}}
	panel := chart.Panel{Title: "the application that fares worst", XLabel: "latency of actdet, caption and en2ge, of a frame alone", YLabel: "frames in time, %", XMin: 1}
	byApp := map[string]Share{}
	for _, k := range tightness {
		for _, name := range []string{"downbeat", "rim"} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r, err := runTight(name, k, seed)
			if err != nil {
				return nil, err
			}

			// The figure shows the application that fares worst, the claims one tightness.
			worst := 100.0
			for _, by := range r.ByApp {
				d.Add(name, k, by.App, by.Sessions, by.FinishPct, by.OverPct)
				worst = min(worst, by.FinishPct)
				if k == toldTightness {
					byApp[name+" "+by.App] = by
				}
			}
			panel.Add(name, k, worst)
		}
	}

	d.Panels = []chart.Panel{panel}
	of := func(policy, app string) string {
		by, ok := byApp[policy+" "+app]
		if !ok {
			return "no session"
		}
		return fmt.Sprintf("%.2f %%, latest by %.1f %%", by.FinishPct, by.OverPct)
	}
	for _, a := range tightApps {
		d.Claims = append(d.Claims, figure.Claim{What: fmt.Sprintf("%s in time with %g times what a frame takes alone: Rim; Downbeat", a.name, toldTightness),
			Published: "over 97 %, latest by " + a.over, Ours: of("rim", a.name) + "; " + of("downbeat", a.name), Verdict: figure.Beside, Why: "the paper's latencies are not published; below twice the time of a frame alone Downbeat refuses such a session, because it divides 0.6 of a latency among the stages"})
	}
	return d, nil
}

// runTight runs f9 with latencies of k times the time of a frame alone.
func runTight(policy string, k float64, seed uint64) (Result, error) {
	w, err := FindWorkload("f9", seed)
	if err != nil {
		return Result{}, err
	}

	// A frame runs alone if all its modules are on one worker.
	alone := newRim(&w, rule{temporal: 1})
	for i := range w.Apps {
		a := &w.Apps[i]
		for _, tight := range tightApps {
			if a.Name == tight.name {
				x := &placement{stream: slices.IndexFunc(w.Streams, func(s Stream) bool { return s.App == i }), worker: make([]int, len(a.Modules))}
				a.Latency = time.Duration(k * float64(alone.latency(x)))
			}
		}
	}
	return runOn(policy, w, w.Workers, seed)
}

// drawUse draws text result 16: the GPU utilisation while all sessions run that Rim admits until it is full, and the
// GPUs that ours needs for them.
func drawUse(ctx context.Context, seed uint64) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"draw", "policy", "workers", "sessions", "finish_pct", "utilization", "accuracy"}}
	use, ours := 0.0, 0.0
	fewest := 0
	for i := range uint64(seedsOfFilled) {
		w, err := FindWorkload("f9", seed+i)
		if err != nil {
			return nil, err
		}

		// The sessions that Rim admits run together, all for the whole span.
		w.limitTo(admittedByRim(&w))
		w.UntilFull, w.Span = false, steadyFor
		for k := range w.Streams {
			w.Streams[k].Until = w.Span
		}

		rim, err := runOn("rim", w, w.Workers, seed+i)
		if err != nil {
			return nil, err
		}
		use += rim.Utilization / seedsOfFilled
		d.Add(i+1, "rim", rim.Workers, rim.Sessions, rim.FinishPct, rim.Utilization, rim.Accuracy)

		// Fewer and fewer workers, until a session is refused.
		least := Result{}
		for n := w.Workers; n > 0; n-- {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r, err := runOn("downbeat", w, n, seed+i)
			if err != nil {
				return nil, err
			}
			if r.Refused > 0 {
				break
			}
			least = r
		}
		ours += least.Utilization / seedsOfFilled
		fewest = max(fewest, least.Workers)
		d.Add(i+1, "downbeat", least.Workers, least.Sessions, least.FinishPct, least.Utilization, least.Accuracy)
	}

	d.Claims = []figure.Claim{
		{What: "use of the GPUs when Rim is full", Published: "52.36 %, about twice that of clouds (10 to 30 %, 28 %)", Ours: percent(100 * use), Verdict: figure.Beside,
			Why: stated + "; Rim's capacity is a frame rate, which processors bound as well"},
		{What: "the same sessions by Downbeat", Published: "–", Ours: fmt.Sprintf("%.2f %% of %d workers at most", 100*ours, fewest), Verdict: figure.NoNumber},
	}
	return d, nil
}

// runOn runs a policy on this many workers.
func runOn(policy string, w Workload, workers int, seed uint64) (Result, error) {
	w.Workers = workers
	chosen, err := Select(policy)
	if err != nil {
		return Result{}, err
	}
	return chosen[0].Run(w, seed)
}
