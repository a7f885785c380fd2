package plan

import (
	"fmt"
	"time"

	"downbeat.dev/core/profile"
)

// Stage is one step of an application, run for each of its frames.
type Stage struct {
	// After names the stages whose results it needs, by index.
	After []int32
	// Profile is ℓ(b) of the variant that serves the stage; nil for a stage that uses no GPU.
	Profile *profile.Profile
	Kind    int     // of GPU
	FanOut  float64 // requests per frame, on average
	// OthersRate is the rate of other requests to the stage's model, in requests/s. A stage that shares its batches
	// needs less time for a batch.
	OthersRate float64
	Fixed      time.Duration // the stage's time if it has no Profile
}

// Application is a directed acyclic graph of stages under one deadline.
type Application struct {
	Stages []Stage
	Hop    time.Duration // from a stage to the next one, or to the client
}

// Bounds of an application, so that sums of its times stay within 64 bits.
const (
	stagesMax  = 256
	latencyMax = 24 * time.Hour
)

func (a *Application) validate() error {
	if len(a.Stages) < 1 || len(a.Stages) > stagesMax {
		return refuse("number of stages", len(a.Stages), fmt.Sprintf("1 to %d", stagesMax))
	}
	if a.Hop < 0 || a.Hop > latencyMax {
		return refuse("hop", a.Hop, "0 to a day")
	}

	for j := range a.Stages {
		s := &a.Stages[j]
		name := fmt.Sprintf("stage %d: ", j)
		switch {
		case !finite(s.FanOut):
			return refuse(name+"fan-out", s.FanOut, "a finite number of requests per frame, 0 or more")
		case !finite(s.OthersRate):
			return refuse(name+"rate of others", s.OthersRate, "a finite number of requests/s, 0 or more")
		case s.Kind < 0 || s.Kind >= KindsMax:
			return refuse(name+"kind", s.Kind, fmt.Sprintf("0 to %d", KindsMax-1))
		case s.Fixed < 0 || s.Fixed > latencyMax:
			return refuse(name+"fixed time", s.Fixed, "0 to a day")
		}

		for _, before := range s.After {
			if before < 0 || int(before) >= len(a.Stages) {
				return refuse(name+"stage before it", before, fmt.Sprintf("0 to %d", len(a.Stages)-1))
			}
		}
	}

	if order := a.order(); len(order) < len(a.Stages) {
		return refuse("application", fmt.Sprintf("a cycle among %d stages", len(a.Stages)-len(order)), "none")
	}
	return nil
}

// order returns the stages such that each comes after its dependencies. Stages on a cycle are missing.
func (a *Application) order() []int32 {
	var order []int32
	done := make([]bool, len(a.Stages))
	for found := true; found; {
		found = false
		for j := range a.Stages {
			ready := !done[j]
			for _, before := range a.Stages[j].After {
				ready = ready && done[before]
			}
			if ready {
				done[j], found = true, true
				order = append(order, int32(j))
			}
		}
	}
	return order
}

// longest returns, for every stage, the longest Σ (budget + hop) of a path that ends with it, and of a path that
// begins after it.
func (a *Application) longest(budget []time.Duration) (until, after []time.Duration) {
	until, after = make([]time.Duration, len(budget)), make([]time.Duration, len(budget))

	order := a.order()
	for _, j := range order {
		for _, before := range a.Stages[j].After {
			until[j] = max(until[j], until[before])
		}
		until[j] += budget[j] + a.Hop
	}

	// From the last stage backwards: behind is the longest remaining path of a stage's results.
	for i := len(order) - 1; i >= 0; i-- {
		j := order[i]
		for _, before := range a.Stages[j].After {
			after[before] = max(after[before], after[j]+budget[j]+a.Hop)
		}
	}
	return until, after
}
