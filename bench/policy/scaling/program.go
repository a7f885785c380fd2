package scaling

import (
	"context"
	"fmt"
	"math"
	"time"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

const (
	// headroom is the public simulator's β: planned capacity over demand.
	headroom = 1.05
	// dropPenalty is the cost of a request that is planned to stay unserved, in units of accuracy.
	dropPenalty = 2
	// demandMin is the smallest planned demand, requests/s: every family gets a device.
	demandMin = 0.5
)

// Program is Proteus's resource allocation (§4) as a mixed integer linear program. Devices of a kind are identical
// and counted; a device's share of requests is its rate over the family's.
type Program struct {
	models  []sim.Model
	devices []int                          // by kind
	allowed func(family, variant int) bool // filter of usable variants
	largest int                            // batch size limit, in addition to the SLO's
	gap     float64

	// Solved counts the solved programs; Elapsed is their total time.
	Solved  int
	Elapsed time.Duration
}

// NewProgram returns the program of a world. gap is the accepted relative gap to the optimum.
func NewProgram(w *sim.World, gap float64) *Program {
	p := &Program{models: w.Models, largest: math.MaxInt, gap: gap, allowed: func(family, variant int) bool { return true }}
	for g := range w.GPUs {
		kind := w.Kind(int32(g))
		for len(p.devices) <= kind {
			p.devices = append(p.devices, 0)
		}
		p.devices[kind]++
	}
	return p
}

// halfBatch returns the largest batch with ℓ(b) ≤ SLO/2 (§4): a request that just missed a batch waits for it.
func halfBatch(slo sched.Duration, p *profile.Profile) int { return p.BatchMax(duration(slo / 2)) }

// capacity returns the requests/s of a variant on a kind; 0: it cannot meet the SLO there.
func (p *Program) capacity(kind, family, variant int) float64 {
	m := &p.models[family]
	table := m.Variants[variant].Profiles[kind]
	if table == nil {
		return 0
	}

	b := min(halfBatch(m.SLO, table), p.largest)
	if b == 0 {
		return 0
	}
	return float64(b) / table.Exec(b).Seconds()
}

// option is a variant on a kind that a program may use.
type option struct {
	kind, family, variant int
	capacity, accuracy    float64
	count, rate           int // columns
}

// options lists the allowed options that can meet the SLO, without options that are neither faster nor more accurate
// than another.
func (p *Program) options() []option {
	var out []option
	for family := range p.models {
		for kind := range p.devices {
			first := len(out)
			for variant := range p.models[family].Variants {
				o := option{kind: kind, family: family, variant: variant, accuracy: p.models[family].Variants[variant].Accuracy}
				if p.allowed(family, variant) {
					o.capacity = p.capacity(kind, family, variant)
				}
				if o.capacity > 0 {
					out = append(out, o)
				}
			}

			// Dominated options would only enlarge the program.
			out = append(out[:first], undominated(out[first:])...)
		}
	}
	return out
}

// undominated keeps the options that no other equals or exceeds in both capacity and accuracy.
func undominated(all []option) []option {
	var kept []option
	for i, a := range all {
		dominated := false
		for j, b := range all {
			better := b.capacity > a.capacity || b.accuracy > a.accuracy || j < i
			dominated = dominated || i != j && b.capacity >= a.capacity && b.accuracy >= a.accuracy && better
		}
		if !dominated {
			kept = append(kept, a)
		}
	}
	return kept
}

// solve returns the placements that serve the demand (requests/s by family) with the highest accuracy: max Σ A·w −
// 2·Σ z with Σ w + z = demand, β·w ≤ capacity·n, Σ n ≤ devices. fixed, unless nil, is each family's number of devices
// of each kind; then only variants are chosen.
func (p *Program) solve(ctx context.Context, demand []float64, fixed [][]int) ([]placement, error) {
	options := p.options()
	problem, err := p.build(options, demand, fixed)
	if err != nil {
		return nil, err
	}
	s, err := solver.Solve(ctx, problem)
	if err != nil {
		return nil, err
	}

	p.Solved++
	p.Elapsed += s.Elapsed
	if s.Status != solver.Optimal && s.Status != solver.Feasible {
		return nil, fmt.Errorf("allocation: the solver ends with %v, want a solution", s.Status)
	}
	return p.read(options, s.Values, demand, fixed), nil
}

// Try solves the program for a demand and discards the solution; Solved and Elapsed count it.
func (p *Program) Try(ctx context.Context, demand []float64) error {
	_, err := p.solve(ctx, demand, nil)
	return err
}

// build writes the program.
func (p *Program) build(options []option, demand []float64, fixed [][]int) (solver.Problem, error) {
	problem := solver.Problem{Gap: p.gap, Limit: 30 * time.Second}

	// Accuracy counts per request, so divide costs by the whole demand.
	total := 0.0
	for _, rate := range demand {
		total += max(rate, demandMin)
	}

	kinds := make([]int, len(p.devices))
	for kind, n := range p.devices {
		kinds[kind] = problem.AddRow(-solver.Inf, float64(n))
	}

	owned := make([][]int, len(fixed))
	for kind := range fixed {
		for _, n := range fixed[kind] {
			owned[kind] = append(owned[kind], problem.AddRow(-solver.Inf, float64(n)))
		}
	}

	served := make([]int, len(p.models))
	for family := range p.models {
		rate := max(demand[family], demandMin)
		served[family] = problem.AddRow(rate, rate)
		problem.AddColumn(dropPenalty/total, 0, rate, false, solver.Term{Row: served[family], Value: 1})
	}

	for i := range options {
		o := &options[i]
		rate := max(demand[o.family], demandMin)

		// An option never needs more devices than serve the whole demand: the bound keeps the search small.
		most := math.Min(float64(p.devices[o.kind]), math.Ceil(headroom*rate/o.capacity))
		enough := problem.AddRow(-solver.Inf, 0)
		count := []solver.Term{{Row: kinds[o.kind], Value: 1}, {Row: enough, Value: -o.capacity}}
		if fixed != nil {
			count = append(count, solver.Term{Row: owned[o.kind][o.family], Value: 1})
		}

		o.count = problem.AddColumn(0, 0, most, true, count...)
		o.rate = problem.AddColumn(-o.accuracy/total, 0, rate, false,
			solver.Term{Row: served[o.family], Value: 1}, solver.Term{Row: enough, Value: headroom})
	}
	return problem, nil
}

// read converts a solution to placements and gives unused devices to the families that gain most.
func (p *Program) read(options []option, values, demand []float64, fixed [][]int) []placement {
	var plan []placement
	for _, o := range options {
		// Count devices from the rates: a solution within the gap may hold more devices than it uses.
		n := int(math.Ceil(headroom*values[o.rate]/o.capacity - 1e-6))
		if n > 0 {
			plan = append(plan, placement{o.kind, int32(o.family), int32(o.variant), n, values[o.rate]})
		}
	}
	return p.spread(plan, options, demand, fixed)
}
