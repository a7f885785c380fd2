package accuracy

import (
	"context"
	"fmt"
	"math"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/sim"
)

// dropPenalty is what a request that is not served costs, in units of accuracy: more than any accuracy,
// so that as many as possible are served first.
const dropPenalty = 2

// Bounds is what no policy exceeds that serves as many requests as can be served.
type Bounds struct {
	Seconds  []float64 // accuracy of the requests of each second, by the devices' time in that second
	Tens     []float64 // of ten seconds each, by their time and one SLO more: work may end that much later
	Accuracy float64   // over the whole trace: the mean of Tens by requests
}

// findBounds finds the optima of a world's windows.
func findBounds(ctx context.Context, w *sim.World, devices []int, seconds int) (*Bounds, error) {
	demand := make([][]float64, seconds)
	for i := range demand {
		demand[i] = make([]float64, len(w.Models))
	}

	// Demand is counted per second of arrival, which is how the drops that it is compared with are counted.
	for _, a := range w.Arrivals {
		demand[a.At/1e9][a.Model]++
	}

	longest := sim.Duration(0)
	for _, m := range w.Models {
		longest = max(longest, m.SLO)
	}

	b := &Bounds{}
	sum, requests := 0.0, 0.0
	for from := 0; from < seconds; from += 10 {
		to := min(from+10, seconds)

		window := make([]float64, len(w.Models))
		for _, second := range demand[from:to] {
			accuracy, _, err := Bound(ctx, w.Models, devices, second, 1)
			if err != nil {
				return nil, err
			}
			b.Seconds = append(b.Seconds, accuracy)
			for f, n := range second {
				window[f] += n
			}
		}

		// A window's last requests may be served after it, until the longest SLO has passed: without that time it
		// would be no bound.
		accuracy, _, err := Bound(ctx, w.Models, devices, window, float64(to-from)+float64(longest)/1e9)
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

// past returns by how much the accuracy of a window of 1 or 10 seconds lies below its bound at most.
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

// Bound returns the highest mean accuracy over the demand (requests by family) with as many requests served
// as can be, by devices (their number by kind) in the given seconds, and the share that can be served. It is the
// linear relaxation of Proteus's program in which a device may divide its time among variants and a batch may
// be as large as the SLO allows.
func Bound(ctx context.Context, models []sim.Model, devices []int, demand []float64, seconds float64) (accuracy, served float64, err error) {
	total := 0.0
	for _, n := range demand {
		total += n
	}

	// No request is missed where none came.
	if total == 0 {
		return 1, 1, nil
	}

	// A row for each kind holds its GPU time; a row for each family, its requests.
	var p solver.Problem
	time := make([]int, len(devices))
	for kind, n := range devices {
		time[kind] = p.AddRow(-solver.Inf, float64(n)*seconds)
	}
	var gained []float64 // by column: accuracy, 0 for what is not served
	for q, n := range demand {
		if n == 0 {
			continue
		}
		row := p.AddRow(n, n)

		// A request may go unserved at a price that no accuracy outweighs, so a program always has a solution.
		p.AddColumn(dropPenalty, 0, n, false, solver.Term{Row: row, Value: 1})
		gained = append(gained, 0)
		for v := range models[q].Variants {
			for kind := range devices {
				// A device at its best batch size all the time: no policy does better, so the bound holds for all.
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

// sumServed returns the mean accuracy of what a solution serves, and how much that is.
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

// LeastCost returns the least device time per request, in seconds, of a variant on a kind when any batch
// may form that ends within the SLO; +Inf: none does.
func LeastCost(m *sim.Model, variant, kind int) float64 {
	best := math.Inf(1)
	p := m.Variants[variant].Profiles[kind]
	if p == nil {
		return best
	}

	// A batch that takes longer than the SLO answers nobody in time.
	for b := 1; b <= p.Max() && sim.Duration(p.Exec(b)) <= m.SLO; b++ {
		best = min(best, p.Exec(b).Seconds()/float64(b))
	}
	return best
}
