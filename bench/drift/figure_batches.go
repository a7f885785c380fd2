package drift

import (
	"context"
	"fmt"
	"math"
	"strings"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
)

// restricted is the default share of wholeMemory on the device in figures 8 to 11, as in figure 12.
const restricted = 0.5

// batchSweep is the setting of figures 8 to 11, with the memory that its networks need.
type batchSweep struct {
	memorySetting
	whole int64
}

func openBatchSweep(in *Inputs) (batchSweep, error) {
	s := defaultMemory(in.Setting)
	whole, err := wholeMemory(s)
	return batchSweep{s, whole}, err
}

// run answers a job with each batch size on a device with a share of the whole memory.
func (x batchSweep) run(ctx context.Context, share float64) (all []batchesTime, err error) {
	s, device := x.memorySetting, int64(share*float64(x.whole))
	for _, s.batch = range batchSizes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		got, err := simulateBatches(s, device)
		if err != nil {
			return nil, err
		}
		all = append(all, got)
	}
	return all, nil
}

// isInner reports whether a batch larger than the fastest fits.
func isInner(all []batchesTime) (inner bool) {
	best := fastest(all)
	for _, b := range all {
		inner = inner || b.fits && b.batch > best.batch
	}
	return inner
}

var batchesHeader = []string{"panel", "line", "batch", "fits", "batch_ms", "job_ms", "copy_share", "loads", "evictions"}

// addBatches adds a sweep's job latencies to a panel and a table.
func addBatches(d *figure.Drawing, p *chart.Panel, line string, all []batchesTime) {
	for _, b := range all {
		d.Add(p.Title, line, b.batch, b.fits, b.perBatch().Seconds()*1000, b.job.Seconds()*1000, b.copyShare(), b.loaded, b.evicted)
		if b.fits {
			p.Add(line, math.Log2(float64(b.batch)), b.job.Seconds()*1000)
		}
	}
}

func (b batchesTime) copyShare() float64 { return b.copying.Seconds() / max(b.job.Seconds(), 1e-12) }

func newBatchesPanel(title string) chart.Panel {
	return chart.Panel{Title: title, XLabel: "log2 of the batch size", YLabel: "ms a job of 64 frames"}
}

// drawBatchSizes draws figure 8.
func drawBatchSizes(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	s, err := openBatchSweep(in)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: batchesHeader}
	jobs := newBatchesPanel("a job by device memory")
	batches := chart.Panel{Title: "a batch", XLabel: "log2 of the batch size", YLabel: "ms"}
	var best []string
	inner := false

	// First everything is on the device, then less and less.
	for _, share := range []float64{1, 0.75, restricted, 0.35} {
		all, err := s.run(ctx, share)
		if err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%.0f %% of the memory", 100*share)
		addBatches(d, &jobs, line, all)
		best = append(best, fmt.Sprintf("%d with %s", fastest(all).batch, line))
		inner = inner || isInner(all)
		for _, b := range all {
			if b.fits {
				batches.Add(line, math.Log2(float64(b.batch)), b.perBatch().Seconds()*1000)
			}
		}
		if share == restricted {
			d.Claims = append(d.Claims, figure.Claim{What: "requests one at a time over a layer for 16 at once", Published: "without it finish rate −5 points (M1)",
				Ours: fmt.Sprintf("%.1f times as long", all[0].job.Seconds()/all[4].job.Seconds()), Verdict: figure.Beside, Why: "the paper prints the finish rate alone"})
		}
	}

	d.Panels = []chart.Panel{jobs, batches}
	d.Claims = append([]figure.Claim{{What: "batch size of the shortest job", Published: "16: larger ones fit and take longer", Ours: strings.Join(best, ", ") + "; " + s.gpu.rates(), Verdict: figure.Judge(inner),
		Why: "the largest batch that fits is the fastest: intermediates in use are never evicted here, so that a batch too large for the device does not run where the paper's swaps"}}, d.Claims...)
	return d, nil
}

// drawSpaces draws figure 9.
func drawSpaces(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	s, err := openBatchSweep(in)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: batchesHeader}
	cores, both := newBatchesPanel("a share of the GPU's rates"), newBatchesPanel("and of its memory")
	var bestCores, bestBoth []string
	least, most := 0, 0
	for _, space := range []float64{0.25, 0.5, 0.75, 1} {
		shared, line := s, fmt.Sprintf("%.0f %%", 100*space)
		shared.gpu = s.gpu.withSpace(space)

		all, err := shared.run(ctx, restricted)
		if err != nil {
			return nil, err
		}
		addBatches(d, &cores, line, all)
		bestCores = append(bestCores, fmt.Sprint(fastest(all).batch))

		// Jobs that share a GPU also share its memory.
		if all, err = shared.run(ctx, space*restricted); err != nil {
			return nil, err
		}
		addBatches(d, &both, line, all)
		bestBoth = append(bestBoth, fmt.Sprint(fastest(all).batch))
		if most = fastest(all).batch; least == 0 {
			least = most
		}
	}

	d.Panels = []chart.Panel{cores, both}
	d.Claims = []figure.Claim{{What: "batch size of the shortest job with 25, 50, 75 and 100 % of a GPU: four times as large with all of it", Published: "4, 8, 16, 16",
		Ours:    fmt.Sprintf("%s where jobs share the memory as they share the cores, %s where each has all of it; %s", strings.Join(bestBoth, ", "), strings.Join(bestCores, ", "), s.gpu.rates()),
		Verdict: figure.Judge(most == 4*least), Why: "what a share of a GPU does to its memory is not said"}}
	return d, nil
}

// exitStructures are the whole application and three of its early-exit structures.
var exitStructures = []struct {
	name     string
	networks []string
}{
	{"whole", []string{"detector-l", "vehicle-l", "activity-l"}},
	{"second exits", []string{"detector-l-exit2", "vehicle-l-exit2", "activity-l-exit2"}},
	{"first exits", []string{"detector-l-exit1", "vehicle-l-exit1", "activity-l-exit1"}},
	{"whole detector, first exits", []string{"detector-l", "vehicle-l-exit1", "activity-l-exit1"}},
}

// drawExitBatches draws figure 10.
func drawExitBatches(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	s, err := openBatchSweep(in)
	if err != nil {
		return nil, err
	}

	d, panel := &figure.Drawing{Header: batchesHeader}, newBatchesPanel("a job by structure")
	var best []string
	for _, x := range exitStructures {
		s.networks = x.networks
		all, err := s.run(ctx, restricted)
		if err != nil {
			return nil, err
		}
		addBatches(d, &panel, x.name, all)
		best = append(best, fmt.Sprintf("%d %s", fastest(all).batch, x.name))
	}

	d.Panels = []chart.Panel{panel}
	d.Claims = []figure.Claim{{What: "batch size of the shortest job, by structure", Published: "16, 32, 32, 4", Ours: strings.Join(best, ", ") + "; " + s.gpu.rates(), Verdict: figure.Beside,
		Why: "the paper's structures were chosen at random and are not named"}}
	return d, nil
}

// drawCopies draws figure 11.
func drawCopies(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	s, err := openBatchSweep(in)
	if err != nil {
		return nil, err
	}
	all, err := s.run(ctx, restricted)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: batchesHeader}
	panel := chart.Panel{Title: "a batch", XLabel: "log2 of the batch size", YLabel: "ms"}
	var shares []string
	for _, b := range all {
		if !b.fits {
			continue
		}
		size, total := math.Log2(float64(b.batch)), b.perBatch().Seconds()*1000
		panel.Add("copies", size, total*b.copyShare())
		panel.Add("computing", size, total*(1-b.copyShare()))
		d.Add(panel.Title, "whole", b.batch, b.fits, total, b.job.Seconds()*1000, b.copyShare(), b.loaded, b.evicted)
		shares = append(shares, fmt.Sprintf("%s at %d", percent(b.copyShare()), b.batch))
	}

	d.Panels = []chart.Panel{panel}
	d.Claims = []figure.Claim{{What: "copies' share of a batch", Published: "about 24 %; 17 % with one model", Ours: strings.Join(shares, ", ") + "; " + s.gpu.rates(), Verdict: figure.Beside,
		Why: "as much of the parameters is copied as the device lacks, here half of all memory that the applications want"}}
	return d, nil
}
