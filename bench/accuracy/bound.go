package accuracy

import (
	"context"
	"fmt"
	"math"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/sim"
)

// dropPenalty is the cost of an unserved request, in units of accuracy. It exceeds every accuracy, so that the
// program serves as many requests as possible.
const dropPenalty = 2

// Bounds are accuracies that no policy exceeds if it serves as many requests as can be served.
type Bounds struct {
	Seconds  []float64 // by second of arrival, with the devices' time in that second
	Tens     []float64 // by ten seconds, with their time and one SLO more, since work may end that much later
	Accuracy float64   // over the whole trace: the mean of Tens, weighted by requests
}

// findBounds computes the optima of a world's windows.
func findBounds(ctx context.Context, w *sim.World, devices []int, seconds int) (*Bounds, error) {
	demand := make([][]float64, seconds)
	for i := range demand {
		demand[i] = make([]float64, len(w.Models))
	}

	// Count the demand by second of arrival, as the drops are counted that it is compared with.
	for _, a := range w.Arrivals {
		demand[a.At/1e9][a.Model]++
	}

	longest := sim.Duration(0)
	for _, m := range w.Models {
		longest = max(longest, m.SLO)
	}

	timeIn := func(seconds float64) (time []float64) {
		for _, n := range devices {
			time = append(time, float64(n)*seconds)
		}
		return time
	}

	b := &Bounds{}
	sum, requests := 0.0, 0.0
	for from := 0; from < seconds; from += 10 {
		to := min(from+10, seconds)

		window := make([]float64, len(w.Models))
		for _, second := range demand[from:to] {
			accuracy, _, err := Bound(ctx, w.Models, timeIn(1), second)
			if err != nil {
				return nil, err
			}
			b.Seconds = append(b.Seconds, accuracy)
			for f, n := range second {
				window[f] += n
			}
		}

		// A window's last requests may be served up to the longest SLO after it; without that time this would be no
		// bound.
		accuracy, _, err := Bound(ctx, w.Models, timeIn(float64(to-from)+float64(longest)/1e9), window)
		if err != nil {
			return nil, err
		}
		b.Tens = append(b.Tens, accuracy)

		for _, n := range window {
			sum += n * accuracy
			requests += n
		}
	}
	b.Accuracy = sum / max(requests, 1)
	return b, nil
}

// past returns the largest difference between the bound and a policy's accuracy over windows of 1 or 10 seconds.
func (b *Bounds) past(m *Measured, wide int) float64 {
	bound := b.Seconds
	if wide == 10 {
		bound = b.Tens
	}
	worst := 0.0
	for i, drop := range m.Drops(wide) {
		worst = max(worst, drop-(1-bound[i]))
	}
	return worst
}

// Bound returns the highest mean accuracy over the demand (requests by family) if as many requests as possible are
// served, and the share that can be served. within is the devices' time in seconds, by kind. The bound is the linear relaxation of Proteus's program: a device may divide its time among variants, and
// a batch may be as large as the SLO allows.
func Bound(ctx context.Context, models []sim.Model, within, demand []float64) (accuracy, served float64, err error) {
	total := 0.0
	for _, n := range demand {
		total += n
	}

	// Without requests none is missed.
	if total == 0 {
		return 1, 1, nil
	}

	// One row per kind bounds its GPU time; one row per family counts its requests.
	var p solver.Problem
	time := make([]int, len(within))
	for kind, most := range within {
		time[kind] = p.AddRow(-solver.Inf, most)
	}
	var gained []float64 // by column: accuracy, 0 for unserved requests
	for q, n := range demand {
		if n == 0 {
			continue
		}
		row := p.AddRow(n, n)

		// A request may stay unserved at a penalty above any accuracy, so the program always has a solution.
		p.AddColumn(dropPenalty, 0, n, false, solver.Term{Row: row, Value: 1})
		gained = append(gained, 0)
		for v := range models[q].Variants {
			for kind := range within {
				// Assume that a device always runs its best batch size: no policy does better.
				cost := LeastCost(&models[q], v, kind)
				if math.IsInf(cost, 1) {
					continue
				}
				a := models[q].Variants[v].Accuracy
				p.AddColumn(-a, 0, n, false, solver.Term{Row: row, Value: 1}, solver.Term{Row: time[kind], Value: cost})
				gained = append(gained, a)
			}
		}
	}

	s, err := solver.Solve(ctx, p)
	if err != nil {
		return 0, 0, err
	}
	if s.Status != solver.Optimal {
		return 0, 0, fmt.Errorf("bound of %.0f requests: the solver ends with %v, want an optimum", total, s.Status)
	}
	accuracy, served = sumServed(s.Values, gained)
	return accuracy, served / total, nil
}

// sumServed returns the mean accuracy of the served requests of a solution, and their number.
func sumServed(values, gained []float64) (accuracy, served float64) {
	for i, x := range values {
		if gained[i] > 0 {
			accuracy += gained[i] * x
			served += x
		}
	}

	if served > 0 {
		accuracy /= served
	}
	return accuracy, served
}

// LeastCost returns the smallest device time per request, in seconds, of a variant on a kind, over all batch sizes
// that end within the SLO; +Inf if none does.
func LeastCost(m *sim.Model, variant, kind int) float64 {
	best := math.Inf(1)
	p := m.Variants[variant].Profiles[kind]
	if p == nil {
		return best
	}

	// A batch that takes longer than the SLO is late for all its requests.
	for b := 1; b <= p.Max() && sim.Duration(p.Exec(b)) <= m.SLO; b++ {
		best = min(best, p.Exec(b).Seconds()/float64(b))
	}
	return best
}
