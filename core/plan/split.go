package plan

import (
	"math"
	"slices"
	"time"
)

// StageBudgets is an application's latency divided among its stages.
type StageBudgets struct {
	Budget []time.Duration // by stage: from the time its request is ready to its result
	// Offset is the time after a stage. The deadline of its requests is the frame's deadline minus Offset, so that a
	// later stage can use time that an earlier stage did not use.
	Offset []time.Duration
	Batch  []int     // by stage: its target batch; 0 without a GPU
	Cost   []float64 // by stage, in GPUs
	Demand []float64 // by kind up to the highest used, in GPUs
	Total  float64   // Σ Demand
}

// splitResolution is the number of steps into which a latency is divided.
const splitResolution = 2048

// SplitLatency divides latency among the stages so that rate frames per second need the least GPU time: min Σ
// rate·fanout·c(B) with Σ (B + hop) ≤ latency on every path (UNIFIED U9). A stage's cost c(B) = ℓ(T)/T is a staircase
// with a step for each target batch T, so budgets are chosen among the steps. The result is exact, to a
// two-thousandth of the latency, for graphs that series and parallel composition can build. Other graphs are
// processed level by level, and the remaining slack is distributed afterwards.
//
// It fails with an InfeasibleError if even single requests take longer.
func SplitLatency(a Application, rate float64, latency time.Duration) (StageBudgets, error) {
	return splitFinely(a, rate, latency, splitResolution)
}

func splitFinely(a Application, rate float64, latency time.Duration, resolution int) (StageBudgets, error) {
	if err := a.validate(); err != nil {
		return StageBudgets{}, err
	}
	if !finite(rate) {
		return StageBudgets{}, refuse("rate", rate, "a finite number of frames/s, 0 or more")
	}
	if latency <= 0 || latency > latencyMax {
		return StageBudgets{}, refuse("latency", latency, "more than 0 and at most a day")
	}
	if err := a.checkLatency(latency); err != nil {
		return StageBudgets{}, err
	}

	// First the ways of each stage, then the ways of larger and larger parts, then the cheapest that is fast enough.
	s := &splitting{app: &a, latency: latency, resolution: resolution}
	leaves := make([]*front, len(a.Stages))
	for j := range leaves {
		leaves[j] = s.makeLeaf(j, rate)
	}
	root, exact := s.composeStages(leaves)
	if exact {
		budget := make([]time.Duration, len(a.Stages))
		root.assignBudgets(root.lastWithin(latency), budget)
		return a.describeBudgets(s.withoutHops(budget), rate), nil
	}

	// The graph is not series-parallel. Start from the levels, or from the shortest budgets if levels take longer
	// than the latency or give a worse result.
	budget := make([]time.Duration, len(a.Stages))
	for _, f := range leaves {
		f.assignBudgets(0, budget)
	}
	best := a.describeBudgets(s.distributeSlack(leaves, s.withoutHops(budget)), rate)
	if len(root.points) > 0 {
		budget := make([]time.Duration, len(a.Stages))
		root.assignBudgets(root.lastWithin(latency), budget)
		if other := a.describeBudgets(s.distributeSlack(leaves, s.withoutHops(budget)), rate); other.Total < best.Total {
			best = other
		}
	}
	return best, nil
}

// withoutHops subtracts the hop from budgets that contain it.
func (s *splitting) withoutHops(budget []time.Duration) []time.Duration {
	for j := range budget {
		budget[j] -= s.app.Hop
	}
	return budget
}

// checkLatency compares the latency with the time of single requests on the longest path.
func (a *Application) checkLatency(latency time.Duration) error {
	least := make([]time.Duration, len(a.Stages))
	for j, s := range a.Stages {
		least[j] = s.Fixed
		if s.Profile != nil {
			least[j] = s.Profile.Exec(1)
		}
	}

	until, _ := a.longest(least)
	if need := slices.Max(until); need > latency {
		return &InfeasibleError{"latency of single requests on the longest path", need.Seconds() * 1e3, latency.Seconds() * 1e3, "ms"}
	}
	return nil
}

// describeBudgets derives all other fields from the budgets.
func (a *Application) describeBudgets(budget []time.Duration, rate float64) StageBudgets {
	b := StageBudgets{Budget: budget, Batch: make([]int, len(budget)), Cost: make([]float64, len(budget))}
	_, b.Offset = a.longest(budget)
	for j, s := range a.Stages {
		b.Offset[j] += a.Hop // to the client, or included in the next stage's
		if s.Profile == nil {
			continue
		}

		// The batch follows from the budget, not from the search: slack may allow a larger one.
		cost, batch := bestWithin(&s, rate, budget[j])
		b.Batch[j] = batch
		for len(b.Demand) <= s.Kind {
			b.Demand = append(b.Demand, 0)
		}
		b.Cost[j] = rate * s.FanOut * cost
		b.Demand[s.Kind] += b.Cost[j]
		b.Total += b.Cost[j]
	}
	return b
}

// bestWithin returns the cheapest batch that a budget allows, in GPU seconds per request. It is never larger than the
// target batch T, and may be smaller on a profile that bends upwards.
func bestWithin(s *Stage, rate float64, budget time.Duration) (cost float64, batch int) {
	all := s.OthersRate + rate*s.FanOut
	cost = math.Inf(1)
	for b := 1; b <= s.Profile.Max(); b++ {
		if gatherTime(all, b)+s.Profile.Exec(b) > budget {
			break
		}
		if c := s.Profile.Exec(b).Seconds() / float64(b); c < cost {
			cost, batch = c, b
		}
	}
	return cost, batch
}

// gatherTime returns the time that a queue at a rate needs from its first request to its b-th.
func gatherTime(rate float64, b int) time.Duration {
	if b == 1 {
		return 0
	}
	ns := float64(b-1) / max(rate, 1e-300) * 1e9
	return time.Duration(min(math.Ceil(ns), 1<<62))
}
