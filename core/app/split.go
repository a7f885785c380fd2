package app

import (
	"fmt"
	"math"
	"strings"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// Profiles returns ℓ(b) of the variant that serves a step. nil: unknown, and the step costs no GPU time.
type Profiles func(step int) *profile.Profile

// Plan describes the graph to core/plan. othersRate is the rate of other requests for each step's model, in
// requests/s; nil: none.
func (g *Graph) Plan(profiles Profiles, othersRate []float64, hop time.Duration) plan.Application {
	a := plan.Application{Stages: make([]plan.Stage, len(g.Steps)), Hop: hop}
	for j := range g.Steps {
		s := &g.Steps[j]

		a.Stages[j] = plan.Stage{After: s.After, FanOut: g.FanOut(j), Fixed: s.Fixed}
		if s.Model == "" {
			continue
		}

		// Without a profile, use a single request's time for every batch size.
		if a.Stages[j].Profile = profiles(j); a.Stages[j].Profile == nil {
			a.Stages[j].Fixed = s.Least
		}
		if othersRate != nil {
			a.Stages[j].OthersRate = othersRate[j]
		}
	}
	return a
}

// Split divides the application's latency among its steps by the cost of GPU time, for a rate of frames/s (UNIFIED
// U9).
func (g *Graph) Split(profiles Profiles, rate float64, hop time.Duration) (plan.StageBudgets, error) {
	b, err := plan.SplitLatency(g.Plan(profiles, nil, hop), rate, g.Latency)
	if err != nil {
		return b, fmt.Errorf("application %q: latency %v: %w", g.Name, g.Latency, err)
	}
	return b, nil
}

// Offsets returns the time to reserve behind each step if profiles are unknown: a step's deadline is the frame's
// deadline minus its offset. A step's share of the latency is its model's SLO, or a hook's fixed time, divided by the
// length of the longest path through it. Every path then fits, since no share exceeds the share on the longest path.
func (g *Graph) Offsets(latency time.Duration) []time.Duration {
	need := make([]float64, len(g.Steps))
	for j := range g.Steps {
		s := &g.Steps[j]
		switch {
		case s.Model == "":
			need[j] = s.Fixed.Seconds()
		case s.SLO > 0:
			need[j] = s.SLO.Seconds()
		default:
			need[j] = 1
		}
	}

	// behind is the longest path from a step's end to the answer; all is the longest path overall.
	behind, all := make([]float64, len(g.Steps)), 0.0
	for j := len(g.Steps) - 1; j >= 0; j-- {
		all = max(all, behind[j]+need[j])
		for _, before := range g.Steps[j].After {
			behind[before] = max(behind[before], behind[j]+need[j])
		}
	}

	offsets := make([]time.Duration, len(g.Steps))
	for j := range offsets {
		if all > 0 {
			offsets[j] = time.Duration(math.Round(float64(latency) * behind[j] / all))
		}
	}
	return offsets
}

// checkLatency rejects a latency below the time of single requests on the longest path.
func (g *Graph) checkLatency() error {
	until := make([]time.Duration, len(g.Steps))
	from := make([]int32, len(g.Steps))
	worst := 0

	// Compute the longest path: a step starts after its latest predecessor.
	for j := range g.Steps {
		from[j] = Single
		for _, before := range g.Steps[j].After {
			if until[before] > until[j] {
				until[j], from[j] = until[before], before
			}
		}

		until[j] += g.Steps[j].Fixed + g.Steps[j].Least
		if until[j] > until[worst] {
			worst = j
		}
	}
	if until[worst] <= g.Latency {
		return nil
	}

	// Name the steps of that path.
	var way []string
	for j := int32(worst); j != Single; j = from[j] {
		way = append([]string{fmt.Sprintf("%s %v", g.Steps[j].Name, g.Steps[j].Fixed+g.Steps[j].Least)}, way...)
	}
	return g.refuseField("latency", g.Latency, fmt.Sprintf("at least %v, which single requests take: %s", until[worst], strings.Join(way, ", ")))
}

// Rest returns the shortest time that lies behind each step: on the longest path, the times of stages whose requests
// all run at once, plus one hop each. With nil profiles it uses the signatures. A step that missed its own deadline
// may be tried again until the frame's deadline minus its rest.
func (g *Graph) Rest(profiles Profiles, hop time.Duration) []time.Duration {
	// A step has a larger number than those before it, so this order sees the later steps first.
	rest := make([]time.Duration, len(g.Steps))
	for j := len(g.Steps) - 1; j >= 0; j-- {
		s := &g.Steps[j]
		takes := s.Fixed + s.Least
		if s.Model != "" && profiles != nil {
			if p := profiles(j); p != nil {
				takes = p.Exec(min(p.Max(), int(math.Ceil(max(1, g.FanOut(j))))))
			}
		}

		rest[j] += hop
		for _, before := range s.After {
			rest[before] = max(rest[before], rest[j]+takes)
		}
	}
	return rest
}
