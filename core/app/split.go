package app

import (
	"fmt"
	"math"
	"strings"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// Profiles finds ℓ(b) of the variant that serves a step; nil: none is known, and the step costs nothing.
type Profiles func(step int) *profile.Profile

// Plan describes the graph to core/plan. othersRate is what else is asked of each step's model, in requests/s; nil:
// nothing.
func (g *Graph) Plan(profiles Profiles, othersRate []float64, hop time.Duration) plan.Application {
	a := plan.Application{Stages: make([]plan.Stage, len(g.Steps)), Hop: hop}
	for j := range g.Steps {
		s := &g.Steps[j]

		a.Stages[j] = plan.Stage{After: s.After, FanOut: g.FanOut(j), Fixed: s.Fixed}
		if s.Model == "" {
			continue
		}

		// Without a profile a single request's time is the best that is known, whatever the batch.
		if a.Stages[j].Profile = profiles(j); a.Stages[j].Profile == nil {
			a.Stages[j].Fixed = s.Least
		}
		if othersRate != nil {
			a.Stages[j].OthersRate = othersRate[j]
		}
	}
	return a
}

// Split divides the application's latency among its steps for frames at a rate per second, by what GPU time costs
// (UNIFIED U9).
func (g *Graph) Split(profiles Profiles, rate float64, hop time.Duration) (plan.StageBudgets, error) {
	b, err := plan.SplitLatency(g.Plan(profiles, nil, hop), rate, g.Latency)
	if err != nil {
		return b, fmt.Errorf("application %q: latency %v: %w", g.Name, g.Latency, err)
	}
	return b, nil
}

// Offsets is what lies behind each step where no profile is known: a step's deadline is the frame's less its offset.
// A step has the share of the latency that its model's SLO, or a hook's fixed time, has of the longest path through
// it; of every path enough is left, since no share is more than that of the longest.
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

	// Behind is the longest way from a step's end to the answer, all the longest way from begin to end.
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

// checkLatency refuses a latency that single requests do not meet on the longest path.
func (g *Graph) checkLatency() error {
	until := make([]time.Duration, len(g.Steps))
	from := make([]int32, len(g.Steps))
	worst := 0

	// The longest path ends at each step behind its latest predecessor.
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

	// The way back names those that take so long.
	var way []string
	for j := int32(worst); j != Single; j = from[j] {
		way = append([]string{fmt.Sprintf("%s %v", g.Steps[j].Name, g.Steps[j].Fixed+g.Steps[j].Least)}, way...)
	}
	return g.refuseField("latency", g.Latency, fmt.Sprintf("at least %v, which single requests take: %s", until[worst], strings.Join(way, ", ")))
}

// Rest is the least that lies behind each step: on the longest way, what single stages take whose requests all run at
// once, and a hop each; nil profiles: what is known of the models. A step that missed its own deadline may still be tried until the frame's less its rest.
func (g *Graph) Rest(profiles Profiles, hop time.Duration) []time.Duration {
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
