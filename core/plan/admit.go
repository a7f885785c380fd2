package plan

import (
	"errors"
	"fmt"
	"time"
)

// Session is a stream of frames for which a rate and a latency are to be promised. The profiles of the
// application's stages are those of the lightest variants at or above the session's floor: what can
// be kept under any load.
type Session struct {
	App     Application
	Rate    float64 // frames/s
	Latency time.Duration
}

// Trial runs what is admitted and one session more in virtual time and reports whether all keep their
// promises. nil passes everything.
type Trial func(rate float64, latency time.Duration, budgets StageBudgets) bool

// Admission is the answer to a session that wants to open.
type Admission struct {
	Admitted bool
	Budgets  StageBudgets // of the session if Admitted
	Refusal  error        // why not: an InfeasibleError, or ErrTrial
	// What would be admitted instead, 0 for nothing: the highest rate at the latency, and the
	// shortest latency at the rate.
	OfferRate    float64
	OfferLatency time.Duration
	// The budgets of these two.
	RateBudgets, LatencyBudgets StageBudgets
}

// ErrTrial is the refusal of a session that fits by demand and was seen to break a promise in virtual
// time.
var ErrTrial = errors.New("a session's frames would be late in a trial")

const (
	offerSteps      = 12  // halvings of the interval in which an offer is looked for
	offerTrials     = 3   // trials for each offer
	offerResolution = 256 // of splits on the way to an offer
	offerLatencyMax = 8   // times the latency that was asked for
)

// Admit decides whether a session may open (UNIFIED U9): its demand beside what everybody else needs at
// the floors must fit the capacity of each kind, u*·N, and the trial must pass. used and capacity are by kind, in
// GPUs. A refusal carries the best rate and the best latency that would be admitted. The error is of
// input that makes no sense.
func Admit(s Session, used, capacity []float64, trial Trial) (Admission, error) {
	if len(used) != len(capacity) {
		return Admission{}, refuse("number of kinds in use", len(used), fmt.Sprint(len(capacity)))
	}
	for k := range used {
		if !finite(used[k]) || !finite(capacity[k]) {
			return Admission{}, refuse(fmt.Sprintf("kind %d: used and capacity", k), [2]float64{used[k], capacity[k]}, "finite numbers of GPUs, 0 or more")
		}
	}

	if s.Rate == 0 {
		return Admission{}, refuse("rate", s.Rate, "more than 0 frames/s")
	}

	// Demand is quick to test and refuses most that cannot be kept; the trial has the last word.
	t := &admitting{s: &s, used: used, capacity: capacity, trial: trial}
	budgets, refusal := t.test(s.Rate, s.Latency, 2048)
	var infeasible *InfeasibleError
	switch {
	case refusal == nil && t.passes(s.Rate, s.Latency, budgets):
		return Admission{Admitted: true, Budgets: budgets}, nil
	case refusal == nil:
		refusal = ErrTrial
	case !errors.As(refusal, &infeasible):
		return Admission{}, refusal
	}

	// A refusal without an offer would only be asked again.
	a := Admission{Refusal: refusal}
	t.offerRate(&a)
	t.offerLatency(&a)
	return a, nil
}

type admitting struct {
	s              *Session
	used, capacity []float64
	trial          Trial
}

// test splits the latency and compares demand with capacity.
func (t *admitting) test(rate float64, latency time.Duration, resolution int) (StageBudgets, error) {
	b, err := splitFinely(t.s.App, rate, latency, resolution)
	if err != nil {
		return b, err
	}

	for k, demand := range b.Demand {
		if k >= len(t.capacity) {
			return b, &InfeasibleError{fmt.Sprintf("GPUs of kind %d", k), demand, 0, "GPUs"}
		}
		if demand > 0 && t.used[k]+demand > t.capacity[k] {
			return b, &InfeasibleError{fmt.Sprintf("GPUs of kind %d", k), t.used[k] + demand, t.capacity[k], "GPUs"}
		}
	}
	return b, nil
}

func (t *admitting) passes(rate float64, latency time.Duration, b StageBudgets) bool {
	return t.trial == nil || t.trial(rate, latency, b)
}

// offerRate looks for the highest rate at the latency that was asked for.
func (t *admitting) offerRate(a *Admission) {
	low, high := 0.0, t.s.Rate
	for range offerSteps {
		middle := (low + high) / 2
		if _, err := t.test(middle, t.s.Latency, offerResolution); err == nil {
			low = middle
		} else {
			high = middle
		}
	}

	// A hair below the highest rate that fits is what a trial passes, or somewhat less.
	for rate, tries := low, 0; rate > 0 && tries < offerTrials; rate, tries = rate*0.85, tries+1 {
		if b, err := t.test(rate, t.s.Latency, 2048); err == nil && t.passes(rate, t.s.Latency, b) {
			a.OfferRate, a.RateBudgets = rate, b
			return
		}
	}
}

// offerLatency looks for the shortest latency at the rate that was asked for.
func (t *admitting) offerLatency(a *Admission) {
	low, high := t.s.Latency, t.s.Latency*offerLatencyMax

	// A rate that does not fit with eight times the latency needs GPUs, not time.
	if _, err := t.test(t.s.Rate, high, offerResolution); err != nil {
		return
	}

	for range offerSteps {
		middle := (low + high) / 2
		if _, err := t.test(t.s.Rate, middle, offerResolution); err == nil {
			high = middle
		} else {
			low = middle
		}
	}

	// A quarter longer at each try: the trial sees what demand by itself does not.
	for latency, tries := high, 0; latency <= t.s.Latency*offerLatencyMax && tries < offerTrials; latency, tries = latency*5/4, tries+1 {
		if b, err := t.test(t.s.Rate, latency, 2048); err == nil && t.passes(t.s.Rate, latency, b) {
			a.OfferLatency, a.LatencyBudgets = latency, b
			return
		}
	}
}
