package scale

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
)

// Seen is what a rule sees of a second.
type Seen struct {
	plan.Load
	Busy time.Duration // GPU time that batches of this second took
}

// Rule advises a number of GPUs, once a second.
type Rule func(now time.Duration, seen Seen) int

// Autoscaler makes a Rule for a run.
type Autoscaler struct {
	Name string
	// Instant is somebody whose GPUs start at once, and who need not be obeyed late.
	Instant bool
	New     func(w *Workload, o Options) Rule
}

// paperPeriod and paperThreshold are not published (§4.4: "periodically", "above a threshold").
const (
	paperPeriod    = 10 * time.Second
	paperThreshold = 0.01
)

// Autoscalers are the rules that a run compares.
var Autoscalers = []Autoscaler{
	{Name: "downbeat", New: newScaler},
	{Name: "paper", New: newPaper},
	{Name: "clairvoyant", Instant: true, New: newClairvoyant},
	{Name: "static", New: func(w *Workload, o Options) Rule {
		most := slices.Max(w.Clairvoyant(plan.DefaultTargets(), time.Second))
		return func(time.Duration, Seen) int { return most }
	}},
}

// Select returns the autoscalers that a comma-separated list names, or all.
func Select(list string) ([]Autoscaler, error) {
	var out []Autoscaler
	for name := range strings.SplitSeq(list, ",") {
		k := slices.IndexFunc(Autoscalers, func(a Autoscaler) bool { return a.Name == name })
		switch {
		case name == "all":
			out = append(out, Autoscalers...)
		case k < 0:
			return nil, fmt.Errorf("policy %q: want all, downbeat, paper, clairvoyant or static", name)
		default:
			out = append(out, Autoscalers[k])
		}
	}
	return out, nil
}

// newScaler is the Scaler that serves.
func newScaler(_ *Workload, o Options) Rule {
	s := plan.NewScaler()
	s.Most, s.Start = o.GPUs, o.Start

	return func(now time.Duration, seen Seen) int {
		advice, err := s.Observe(now, seen.Load)
		if err != nil {
			panic("scale: " + err.Error()) // the cluster counts its own GPUs and requests
		}
		return advice.GPUs
	}
}

// newPaper is §4.4 as printed, over its period.
func newPaper(*Workload, Options) Rule {
	var requests, bad, gpus, seconds int
	var busy time.Duration
	wanted := 0

	return func(now time.Duration, seen Seen) int {
		requests, bad, gpus, busy, seconds = requests+seen.Requests, bad+seen.Bad, gpus+seen.GPUs, busy+seen.Busy, seconds+1

		// Until the first period has passed the rule keeps what it found.
		if wanted == 0 {
			wanted = seen.Ordered
		}
		if time.Duration(seconds)*time.Second < paperPeriod {
			return wanted
		}

		idle := max(0, 1-busy.Seconds()/float64(max(1, gpus)))
		wanted = policy.Autoscale(seen.Ordered, float64(bad)/float64(max(1, requests)), idle, paperThreshold)
		requests, bad, gpus, busy, seconds = 0, 0, 0, 0, 0
		return wanted
	}
}

// newClairvoyant has what the rates of this second and the next need.
func newClairvoyant(w *Workload, _ Options) Rule {
	needed := w.Clairvoyant(plan.DefaultTargets(), time.Second)
	return func(now time.Duration, _ Seen) int { return needed[min(int(now/time.Second), len(needed)-1)] }
}
