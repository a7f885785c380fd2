package scale

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/plan"
)

// Seen is a rule's input about a second.
type Seen struct {
	plan.Load
	Busy time.Duration // GPU time of this second's batches
}

// Rule advises a number of GPUs, once a second.
type Rule func(now time.Duration, seen Seen) int

// Autoscaler creates a Rule for a run.
type Autoscaler struct {
	Name string
	// Instant means that GPUs start at once.
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

// Select returns the autoscalers in a comma-separated list, or all.
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

// newScaler is the serving Scaler.
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

		// Until the first period has passed, the rule keeps the initial number.
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

// newClairvoyant returns the need of the rates of this second and the next.
func newClairvoyant(w *Workload, _ Options) Rule {
	needed := w.Clairvoyant(plan.DefaultTargets(), time.Second)
	return func(now time.Duration, _ Seen) int { return needed[min(int(now/time.Second), len(needed)-1)] }
}
