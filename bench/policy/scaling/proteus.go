package scaling

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// solvePeriod is the longest interval between two solutions of Proteus's program (§6.1.5).
const solvePeriod = sched.Duration(30e9)

// proteus plans with the exact program, periodically and when the demand leaves the plan (§3, §4).
type proteus struct {
	ctx     context.Context
	program *Program
	fixed   [][]int // by kind and family: a static placement, of which only variants change
	planned []float64
	solved  sched.Time
	outside int // consecutive seconds in which the demand left the plan
	failed  error
}

// plan implements planner.
func (a *proteus) plan(now sched.Time, p *hosted) []placement {
	if a.failed != nil || a.planned != nil && !a.planIsDue(now, p.demand) {
		return nil
	}

	rates := make([]float64, len(p.w.Models))
	for f := range rates {
		rates[f] = max(p.demand.smoothed[f], p.demand.fast(f))
	}

	// At the start nothing has been counted yet, so use the rates of the first seconds.
	if p.demand.seconds == 0 {
		rates = firstRates(p.w)
	}

	plan, err := a.program.solve(a.ctx, rates, a.fixed)
	if err != nil {
		a.failed = err
		return nil
	}
	a.planned, a.solved, a.outside = rates, now, 0
	return plan
}

// planIsDue reports whether to plan again.
func (a *proteus) planIsDue(now sched.Time, d *demand) bool {
	// Require two consecutive seconds: one alone may be chance.
	if d.leaves(a.planned) {
		a.outside++
	} else {
		a.outside = 0
	}
	return a.outside >= 2 || now.Sub(a.solved) >= solvePeriod
}

// firstRates returns the rates of the first five seconds of a world's arrivals, which an operator who starts the
// system would know.
func firstRates(w *sim.World) []float64 { return meanRates(w, 5*time.Second) }

// meanRates returns the families' mean rates before a time; 0: over all arrivals.
func meanRates(w *sim.World, until time.Duration) []float64 {
	out := make([]float64, len(w.Models))
	span := 1.0
	for _, a := range w.Arrivals {
		if until > 0 && a.At >= until {
			break
		}
		out[a.Model]++
		span = max(span, float64(a.At)/1e9)
	}
	for f := range out {
		out[f] /= span
	}
	return out
}

// staticRates returns the demand for static placements: each family's mean over the whole trace, which no online
// system knows, scaled to the busiest second.
func staticRates(w *sim.World) []float64 {
	var seconds []float64
	for _, a := range w.Arrivals {
		for len(seconds) <= int(a.At/1e9) {
			seconds = append(seconds, 0)
		}
		seconds[a.At/1e9]++
	}

	peak, sum := 0.0, 0.0
	for _, n := range seconds {
		peak = max(peak, n)
		sum += n
	}

	// Keep the families' shares and scale their sum to the busiest second.
	out := meanRates(w, 0)
	for f := range out {
		out[f] *= peak * float64(len(seconds)) / max(sum, 1)
	}
	return out
}

// static plans once.
type static struct {
	placements []placement
}

// plan implements planner.
func (s *static) plan(now sched.Time, p *hosted) []placement {
	if now > 0 {
		return nil
	}
	return s.placements
}

// Settings are a policy's parameters beside the world.
type Settings struct {
	LoadTime sched.Duration // of a variant on a device
	Gap      float64        // of programs to their optimum
	Training *Training      // beside serving; nil: none
}

// Training is AdaInf's rule on hosts that defer: the time of a request's SLO that is left before its batch must start
// is used for training before the batch (AdaInf §3.3). The host ignores arrivals until then.
type Training struct {
	Families []bool        // whose models train
	Took     time.Duration // GPU time, so far
}

// Policy is a policy that runs in a world. Report describes its plans after the run.
type Policy interface {
	sim.Server
	Report() Report
}

// Report is the cost of a policy's plans.
type Report struct {
	Plans   int
	Elapsed time.Duration
	Err     error // a plan that failed
}

// planned is a hosted policy with its program.
type planned struct {
	*hosted
	program *Program
	failed  func() error
}

// Report implements Policy.
func (p *planned) Report() Report {
	return Report{p.program.Solved, p.program.Elapsed, p.failed()}
}

// NewProteus returns Proteus itself.
func NewProteus(ctx context.Context, w *sim.World, s Settings) Policy {
	return newProteus(ctx, w, s, nil)
}

// newProteus returns Proteus, or an ablation: change alters the program, the placement or the batching.
func newProteus(ctx context.Context, w *sim.World, s Settings, change func(*proteus, *hosted)) Policy {
	a := &proteus{ctx: ctx, program: NewProgram(w, s.Gap)}
	h := newHosted(w, a, deferBatch, s.LoadTime)
	h.training = s.Training
	if change != nil {
		change(a, h)
	}
	return &planned{h, a.program, func() error { return a.failed }}
}

// withoutPlacement fixes each device's family as the program places it for the trace's mean demand, and lets the
// program choose only variants: Proteus w/o MP, which is Sommelier (§6.1.1, §6.5).
func withoutPlacement(w *sim.World) func(*proteus, *hosted) {
	return func(a *proteus, h *hosted) {
		plan, err := a.program.solve(a.ctx, meanRates(w, 0), nil)
		if err != nil {
			a.failed = fmt.Errorf("initial placement: %w", err)
			return
		}

		// The devices of each family stay; later plans change only their variants.
		a.fixed = make([][]int, len(a.program.devices))
		for kind := range a.fixed {
			a.fixed[kind] = make([]int, len(w.Models))
		}
		for _, x := range plan {
			a.fixed[x.kind][x.family] += x.devices
		}
	}
}

// withoutSelection allows only each family's most accurate usable variant: Proteus w/o MS.
func withoutSelection(a *proteus, h *hosted) { a.program.allowed = a.program.extreme(true) }

// withoutBatching runs and plans batches of one: Proteus w/o AB.
func withoutBatching(a *proteus, h *hosted) {
	a.program.largest = 1
	h.batching = singleBatch
}

// withoutAssignment distributes a family's requests evenly over its devices: Proteus w/o QA.
func withoutAssignment(a *proteus, h *hosted) { h.uniform = true }

// extreme returns a filter that allows, for each family, only the most or the least accurate variant that meets the
// SLO on some kind.
func (p *Program) extreme(most bool) func(family, variant int) bool {
	chosen := make([]int, len(p.models))
	for family := range p.models {
		chosen[family] = -1
		for variant := range p.models[family].Variants {
			// Skip a variant that no kind can run within the SLO.
			usable := false
			for kind := range p.devices {
				usable = usable || p.capacity(kind, family, variant) > 0
			}

			c := chosen[family]
			if usable && (c < 0 || p.models[family].Variants[variant].Accuracy > p.models[family].Variants[c].Accuracy == most) {
				chosen[family] = variant
			}
		}
	}
	return func(family, variant int) bool { return chosen[family] == variant }
}

// newClipper returns Clipper-HA or Clipper-HT (§6.1.1): a static placement by the program with only the most, or the
// least, accurate variants, and AIMD batches.
func newClipper(ctx context.Context, w *sim.World, s Settings, most bool) Policy {
	program := NewProgram(w, s.Gap)
	program.allowed = program.extreme(most)
	plan, err := program.solve(ctx, staticRates(w), nil)
	h := newHosted(w, &static{plan}, aimdBatch, s.LoadTime)
	return &planned{h, program, func() error { return err }}
}

// newFixed returns a batching rule on the program's placement for the trace's mean demand, which does not change.
// Figure 6 compares rules in this way (§6.4).
func newFixed(ctx context.Context, w *sim.World, s Settings, rule batching) Policy {
	program := NewProgram(w, s.Gap)
	plan, err := program.solve(ctx, meanRates(w, 0), nil)
	h := newHosted(w, &static{plan}, rule, s.LoadTime)
	return &planned{h, program, func() error { return err }}
}
