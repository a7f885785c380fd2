//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"downbeat.dev"
	"downbeat.dev/bench/load"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
)

// rampSteps are the loads on one family, in multiples of the rate that its most accurate variant sustains: well above
// 1 and back. The load falls in two steps, since the estimated rate needs seconds to follow.
var rampSteps = []struct {
	load float64
	span time.Duration
}{{0.25, 3 * time.Second}, {0.75, 2 * time.Second}, {1.25, 2 * time.Second}, {2, 4 * time.Second}, {0.25, 8 * time.Second}, {0.25, 3 * time.Second}}

// rampMost limits the load to a share of the rate that the lightest variant sustains, since the generator runs on the
// same processors.
const rampMost = 0.4

// rampLeast is the smallest ratio between the rates of the lightest and the most accurate variant.
const rampLeast = 2.5

// ramped is a family with the rates that its most accurate and its lightest variant sustain.
type ramped struct {
	name           string
	best           string
	accurate, most float64 // requests/s
}

// tally counts the answers of each variant. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex
	accuracy float64 // sum over answers
	answers  map[string]int
	total    int
}

// showRamp raises and lowers the load on one family, and prints which variants answered at each step.
func showRamp(ctx context.Context, s *downbeat.System) error {
	hello := s.Backend().Hello()
	family, ok := heaviestFamily(&hello)
	if !ok {
		return nil
	}

	fmt.Printf("\nFamily %s: the load rises above the %.0f requests/s that %s sustains, and falls again:\n", family.name, family.accurate, family.best)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "requests/s\tseconds\tin time\tmean batch\taccuracy\tanswered by")

	before, err := readHostLoad()
	worst := 0.0
	for _, step := range rampSteps {
		// The load stays below the lightest variant's rate, so that accuracy drops but no request is lost.
		rate := min(step.load*family.accurate, rampMost*family.most)
		bad, err := sendStep(ctx, s, w, family.name, rate, step.span)
		if err != nil {
			return err
		}
		worst = max(worst, bad)
	}
	if err := w.Flush(); err != nil {
		return err
	}

	// A host that does not tell its load is no reason to end the demo.
	if now, also := readHostLoad(); err == nil && also == nil {
		fmt.Print(explainLoss(worst, now.othersSince(before)))
	}
	return nil
}

// othersMuch is the share of the processors from which on other programs explain lost requests: the ramp's load leaves
// more than that free.
const othersMuch = 0.1

// explainLoss says that the host's other work is why a step lost requests; empty if it lost hardly any, or the host
// had little other work. bad is in percent.
func explainLoss(bad, others float64) string {
	if bad <= probeBad || others < othersMuch {
		return ""
	}
	return fmt.Sprintf("Other programs took %.0f %% of this host's processors meanwhile: a step that lost requests may have lost them for that reason.\n", 100*others)
}

// sendStep sends one step's load, prints its line and returns the share of requests not answered in time, in percent.
func sendStep(ctx context.Context, s *downbeat.System, w io.Writer, family string, rate float64, span time.Duration) (bad float64, err error) {
	f := loadFlags{models: family, shape: arrivals.Shape{Arrivals: "poisson", Popularity: "even", Rate: rate, Span: span, Seed: 2}}
	o, err := f.options(s.Client())
	if err != nil {
		return 0, err
	}

	target, err := newTarget(s, o, f.shape.Seed)
	if err != nil {
		return 0, err
	}

	// Wrap the calls to count the variants that answer, since the report has no variants.
	t := &tally{answers: map[string]int{}}
	target.Do = t.count(target.Do)
	o.Classify = load.Classify
	before := s.BatchSizes(family)
	r := load.Run(ctx, target, o)
	fmt.Fprintf(w, "%.0f\t%.0f\t%.2f %%\t%.1f\t%s\n", rate, span.Seconds(), 100-r.BadPercent(), meanBatch(s.BatchSizes(family), before), t)
	return r.BadPercent(), ctx.Err()
}

// count wraps do and counts its answers by variant.
func (t *tally) count(do func(context.Context, frontend.Request) (frontend.Result, error)) func(context.Context, frontend.Request) (frontend.Result, error) {
	return func(ctx context.Context, r frontend.Request) (frontend.Result, error) {
		result, err := do(ctx, r)
		if err == nil {
			t.mu.Lock()
			t.accuracy += result.Accuracy
			t.answers[result.Model]++
			t.total++
			t.mu.Unlock()
		}
		return result, err
	}
}

// String returns the mean accuracy and each variant's share of the answers.
func (t *tally) String() string {
	if t.total == 0 {
		return "–\tnobody"
	}

	var names, parts []string
	for name := range t.answers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", name, 100*float64(t.answers[name])/float64(t.total)))
	}
	return fmt.Sprintf("%.4f\t%s", t.accuracy/float64(t.total), strings.Join(parts, ", "))
}

// heaviestFamily returns the family whose most accurate variant sustains the lowest rate, so that the load can exceed
// it without much work outside the executors. Its lightest variant must sustain at least rampLeast times that rate.
func heaviestFamily(hello *wire.BackendHello) (found ramped, ok bool) {
	families, top := map[string]ramped{}, map[string]float64{}
	for i := range hello.Models {
		m := &hello.Models[i]
		if m.Info.Family == "" || len(m.Profile) == 0 {
			continue
		}
		carries := float64(len(hello.GPUs)) * carriedRate(m.Profile, time.Duration(m.Info.SLO))
		f := families[m.Info.Family]
		if f.name = m.Info.Family; m.Info.Accuracy > top[f.name] {
			top[f.name], f.accurate, f.best = m.Info.Accuracy, carries, m.Info.Name
		}
		f.most = max(f.most, carries)
		families[f.name] = f
	}

	// The family with the slowest best variant shows the most. Break ties by name, since a map has no order.
	for _, f := range families {
		if f.best == "" || f.most < rampLeast*f.accurate {
			continue
		}
		if !ok || f.accurate < found.accurate || f.accurate == found.accurate && f.name < found.name {
			found, ok = f, true
		}
	}
	return found, ok
}

// carriedRate returns the requests/s of one GPU with the largest batch that takes at most half of the SLO.
func carriedRate(table []time.Duration, slo time.Duration) float64 {
	rate := 1 / table[0].Seconds()
	for b, exec := range table {
		// Half of the SLO is left for waiting: a request waits for one batch and runs in the next.
		if exec <= slo/2 {
			rate = max(rate, float64(b+1)/exec.Seconds())
		}
	}
	return rate
}
