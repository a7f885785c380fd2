package drift

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/median"
	"downbeat.dev/cuda/residency"
)

// reusePublished are the ranges of AdaInf figure 12, by class; figure 13 has none.
var reusePublished = [reuseClasses]string{"0.01 to 1.6 ms", "0.02 to 6 ms", "0.02 to 7.5 ms", "67 to 68.6 ms", "0.01 to 0.02 ms", "0.01 to 1.65 ms", "no numbers"}

// reuseWhy is the reason why a range differs from the paper's.
const reuseWhy = "smaller networks and rates of our own: what counts is the order of the types"

// drawReuse draws figure 12: the time from a random moment until a content of the device is used again.
func drawReuse(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	r, err := simulateMemory(defaultMemory(in.Setting))
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"panel", "content", "share", "ms"}}
	types := newReusePanel("one task: type of content")
	tasks := newReusePanel("from one task to another of the job")
	addReuse(d, &types, "a", r.g, inferIntermediates, trainParameters, trainIntermediates, inferParameters)
	addReuse(d, &tasks, "b", r.g, detectorOutputs, updatedParameters)
	d.Panels = []chart.Panel{types, tasks}

	for class := inferIntermediates; class <= updatedParameters; class++ {
		d.Claims = append(d.Claims, figure.Claim{What: "reuse of " + reuseNames[class], Published: reusePublished[class], Ours: describeReuse(r.g.reused[class]), Verdict: figure.Beside, Why: reuseWhy})
	}

	// The eviction order relies on parameters in inference being reused last.
	middle := func(c reuseClass) time.Duration { return median.Percentile(r.g.reused[c], 50) }
	others := max(middle(inferIntermediates), middle(trainParameters), middle(trainIntermediates))
	d.Claims = append(d.Claims, figure.Claim{What: "the type that is reused last", Published: "parameters in inference, 9 times later than the next",
		Ours: fmt.Sprintf("parameters in inference, by the median %.0f times later than the next; %s", float64(middle(inferParameters))/float64(max(others, 1)), r.gpu.rates()), Verdict: figure.Judge(middle(inferParameters) > others)})
	return d, nil
}

// drawNextJob draws figure 13: the time until the next job of an application uses what a job has left.
func drawNextJob(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	r, err := simulateMemory(defaultMemory(in.Setting))
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"panel", "content", "share", "ms"}}
	panel := newReusePanel("by the next job of the application")
	addReuse(d, &panel, "-", r.g, nextJobParameters)
	d.Panels = []chart.Panel{panel}

	d.Claims = []figure.Claim{
		{What: "reuse of parameters by the next job", Published: reusePublished[nextJobParameters], Ours: describeReuse(r.g.reused[nextJobParameters]) + ", " + r.gpu.rates(), Verdict: figure.NoNumber,
			Why: "it is the time between the jobs of an application, whose rates are ours"},
		{What: "intermediates that the next job reuses", Published: "none", Ours: "none: they are freed with their batch", Verdict: figure.Beside, Why: "the simulation frees them: it shows nothing of its own"},
	}
	return d, nil
}

// newReusePanel returns a panel for a distribution over times of five powers of ten.
func newReusePanel(title string) chart.Panel {
	return chart.Panel{Title: title, XLabel: "log10 of the time to the next use, ms", XMin: -3, YLabel: "share of the contents"}
}

// addReuse adds the distributions of some classes.
func addReuse(d *figure.Drawing, p *chart.Panel, panel string, g *memoryGPU, classes ...reuseClass) {
	for _, class := range classes {
		for percent := 0; percent <= 100; percent += 5 {
			share := float64(percent) / 100
			ms := median.Percentile(g.reused[class], float64(percent)).Seconds() * 1000
			p.Add(reuseNames[class], math.Log10(max(ms, 1e-3)), share)
			d.Add(panel, reuseNames[class], share, ms)
		}
	}
}

// describeReuse describes some times by the middle nine tenths and the median.
func describeReuse(all []time.Duration) string {
	at := median.Percentiles(all, 5, 95, 50)
	return fmt.Sprintf("%.3f to %.3f ms (5 %% to 95 %% of %d), median %.3f", 1e3*at[0].Seconds(), 1e3*at[1].Seconds(), len(all), 1e3*at[2].Seconds())
}

const (
	weightResident = 0.3 // share of the parameters on the device in figure 23; with a smaller share, copies alone fill the GPU
	weightSeeds    = 3
	// rareFrames is the rate of all applications in frames/s. It spaces their jobs as the paper does: inference uses
	// its parameters again after some 60 ms.
	rareFrames = 60
)

// weights are those of figure 23. The score needs a weight between 0 and 1.
var weights = []float64{0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99}

// evicting is the result of one weight over all seeds.
type evicting struct{ finish, copying, steps, parameters, retrained float64 }

// drawWeights draws figure 23.
func drawWeights(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	d := &figure.Drawing{Header: []string{"frames", "alpha", "seed", "finish", "copy_share", "training_steps", "evicted_parameters", "evicted_retrained", "loads", "loads_pinned", "mb_in", "mb_out"}}
	finish := chart.Panel{Title: "finish rate", XLabel: "α", YLabel: "share of the frames", YMin: 0.8}
	copying := chart.Panel{Title: "the GPU waits for copies", XLabel: "α", YLabel: "share of its busy time"}
	retrained := chart.Panel{Title: "evicted parameters in retraining", XLabel: "α", YLabel: "layers' a job"}

	s := defaultMemory(in.Setting)
	s.resident = weightResident
	often, err := sweepWeights(ctx, s, d)
	if err != nil {
		return nil, err
	}
	s.frames = rareFrames
	rare, err := sweepWeights(ctx, s, d)
	if err != nil {
		return nil, err
	}

	for i, alpha := range weights {
		for k, x := range []evicting{often[i], rare[i]} {
			line := []string{"jobs every 10 ms", "every 60 ms"}[k]
			finish.Add(line, alpha, x.finish)
			copying.Add(line, alpha, x.copying)
			retrained.Add(line, alpha, x.retrained)
		}
	}
	d.Panels = []chart.Panel{finish, copying, retrained}
	d.Claims = claimWeights(often, rare, s.gpu.rates())
	return d, nil
}

// sweepWeights simulates every weight with all seeds.
func sweepWeights(ctx context.Context, s memorySetting, d *figure.Drawing) (all []evicting, err error) {
	first := s.seed
	for _, s.alpha = range weights {
		var sum evicting
		for seed := range uint64(weightSeeds) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s.seed = first + seed
			r, err := simulateMemory(s)
			if err != nil {
				return nil, err
			}

			one := r.evicting()
			sum = evicting{sum.finish + one.finish, sum.copying + one.copying, sum.steps + one.steps, sum.parameters + one.parameters, sum.retrained + one.retrained}
			d.Add(s.frames, s.alpha, s.seed, one.finish, one.copying, r.steps, r.g.evicted[residency.Parameters], r.g.evicted[residency.RetrainParameters], r.g.loads, r.g.fromPinned, float64(r.g.bytesIn)/1e6, float64(r.g.bytesOut)/1e6)
		}
		all = append(all, evicting{sum.finish / weightSeeds, sum.copying / weightSeeds, sum.steps / weightSeeds, sum.parameters / weightSeeds, sum.retrained / weightSeeds})
	}
	return all, nil
}

// evicting returns a simulation's result, with evictions per job.
func (r *memoryRun) evicting() evicting {
	jobs := float64(max(1, len(r.jobs)))
	return evicting{float64(r.finished) / float64(max(1, r.asked)), r.g.copying.Seconds() / (r.g.copying + r.g.computing).Seconds(), float64(r.steps),
		float64(r.g.evicted[residency.Parameters]) / jobs, float64(r.g.evicted[residency.RetrainParameters]) / jobs}
}

func claimWeights(often, rare []evicting, rates string) []figure.Claim {
	paper := slices.Index(weights, 0.4)
	best, fewest, most := 0, often[0].steps, often[0].steps
	for i, x := range often {
		if x.finish > often[best].finish {
			best = i
		}
		fewest, most = min(fewest, x.steps), max(most, x.steps)
	}

	return []figure.Claim{
		{What: "α of the best finish rate", Published: "0.4", Ours: fmt.Sprintf("%v with %s; %s at 0.4", weights[best], percent(often[best].finish), percent(often[paper].finish)), Verdict: figure.Judge(often[paper].finish >= often[best].finish),
			Why: "a type's score is (1−α)·R + α·L: R of inference and of retraining lie 10 ms apart here, 65 ms in the paper, so that at 0.4 which SLOs happen to drift decides, and the parameters go that the same step wants again"},
		{What: "α with the fewest copies, with jobs every 60 ms", Published: "0.4", Ours: describeCopies(rare), Verdict: figure.Beside,
			Why: "the paper's reuse times of parameters in inference are 67 to 68.6 ms; the GPU is then so empty that all frames are in time"},
		{What: "accuracy over α", Published: "flat", Ours: fmt.Sprintf("training steps %.0f to %.0f", fewest, most), Verdict: figure.Beside, Why: "steps are counted in place of what they teach"},
		{What: "what eviction costs at α = 0.4", Published: "-", Ours: fmt.Sprintf("a job evicts %.1f layers' parameters of inference and %.1f in retraining; %s; %s", often[paper].parameters, often[paper].retrained,
			describeCopies(often), rates), Verdict: figure.NoNumber},
	}
}

// describeCopies describes the weight with the shortest copying time, and the time of some other weights.
func describeCopies(all []evicting) string {
	least := 0
	for i, x := range all {
		if x.copying < all[least].copying {
			least = i
		}
	}
	return fmt.Sprintf("copies take %s of the busy time at %v, %s at 0.1, %s at 0.4, %s at 0.6, %s at 0.9", percent(all[least].copying), weights[least],
		percent(all[1].copying), percent(all[4].copying), percent(all[6].copying), percent(all[9].copying))
}
