package plan

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Session is a stream of frames that requests a promised rate and latency. The profiles of its application's stages
// are those of the fastest variants at or above the session's floor, so that the promise holds under any load.
type Session struct {
	App     Application
	Rate    float64 // frames/s
	Latency time.Duration
	Grain   time.Duration // of offered latencies; 0: 1 ns
}

// Trial runs the admitted sessions and one more in virtual time and reports whether all keep their promises. A nil
// Trial accepts everything.
type Trial func(rate float64, latency time.Duration, budgets StageBudgets) bool

// Admission is the answer to a session that asks to open.
type Admission struct {
	Admitted bool
	Budgets  StageBudgets // of the session if Admitted
	Refusal  error        // why not: an InfeasibleError, or ErrTrial
	// Alternatives that would be admitted, 0 if none was found: a rate at the requested latency, rounded to three
	// digits so that a caller can request it, and a latency at the requested rate.
	OfferRate    float64
	OfferLatency time.Duration
	// The budgets of the two alternatives.
	RateBudgets, LatencyBudgets StageBudgets
}

// ErrTrial is the refusal of a session that fits by demand but broke a promise in virtual time.
var ErrTrial = errors.New("a session's frames would be late in a trial")

const (
	trialsMost      = 3   // of one answer: the decision's, and those that confirm offers
	offerSteps      = 12  // halvings of the interval of an offer
	offerResolution = 256 // of splits during the search for an offer
	offerLatencyMax = 8   // times the requested latency
)

// Admit decides whether a session may open (UNIFIED U9). Its demand plus the demand of all others at their floors
// must fit the capacity of each kind, u*·N, and the trial must pass. used and capacity are by kind, in GPUs. A
// refusal offers a rate and a latency that would be admitted, if the few that are tried include one. The error
// reports invalid input.
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

	// Demand is quick to test and refuses most sessions that cannot be served. The trial decides about the others.
	t := &admitting{s: &s, used: used, capacity: capacity, trial: trial}
	budgets, refusal := t.testDemand(s.Rate, s.Latency, splitResolution)
	var infeasible *InfeasibleError
	switch {
	case refusal == nil && t.passesTrial(s.Rate, s.Latency, budgets):
		return Admission{Admitted: true, Budgets: budgets}, nil
	case refusal == nil:
		refusal = ErrTrial
	case !errors.As(refusal, &infeasible):
		return Admission{}, refusal
	}

	// After a refusal without an offer, callers would only ask again.
	a := Admission{Refusal: refusal}
	t.lookForOffers(&a)
	return a, nil
}

type admitting struct {
	s              *Session
	used, capacity []float64
	trial          Trial
	trials         int // so far
}

// testDemand splits the latency and compares demand with capacity.
func (t *admitting) testDemand(rate float64, latency time.Duration, resolution int) (StageBudgets, error) {
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

func (t *admitting) passesTrial(rate float64, latency time.Duration, b StageBudgets) bool {
	t.trials++
	return t.trial == nil || t.trial(rate, latency, b)
}

// lookForOffers looks for alternatives that would be admitted. Each trial takes as long as the decision's, so there
// are few. If the trial refused, it tries half the rate. If demand refused, it tries the rate that fits and half of
// it. A cluster that passes none of these is full, and in measurements a longer latency did not help it (decision
// 0281).
func (t *admitting) lookForOffers(a *Admission) {
	byTrial := errors.Is(a.Refusal, ErrTrial)

	fits := t.rateThatFits()
	rates := []float64{threeDigits(fits), threeDigits(fits / 2)}
	if byTrial {
		rates = rates[1:]
	}
	for _, rate := range rates {
		if b, ok := t.confirmOffer(rate, t.s.Latency); ok {
			a.OfferRate, a.RateBudgets = rate, b
			break
		}
	}
	if fits > 0 && a.OfferRate == 0 {
		return
	}

	// If the trial refused, the requested latency already fits by demand.
	fitting := t.latencyThatFits()
	latencies := []time.Duration{fitting, fitting * 3 / 2}
	if byTrial {
		latencies = latencies[1:]
	}
	for _, latency := range latencies {
		if g := t.s.Grain; g > 0 {
			latency = (latency + g - 1) / g * g
		}
		if b, ok := t.confirmOffer(t.s.Rate, latency); ok {
			a.OfferLatency, a.LatencyBudgets = latency, b
			break
		}
	}
}

// confirmOffer decides about a rate and a latency as if they were requested. It returns false for 0, and after the last
// trial.
func (t *admitting) confirmOffer(rate float64, latency time.Duration) (StageBudgets, bool) {
	if rate == 0 || latency == 0 || t.trials == trialsMost {
		return StageBudgets{}, false
	}
	b, err := t.testDemand(rate, latency, splitResolution)
	return b, err == nil && t.passesTrial(rate, latency, b)
}

// threeDigits rounds a number down to three digits.
func threeDigits(x float64) float64 {
	if x == 0 {
		return 0
	}
	scale := math.Pow10(2 - int(math.Floor(math.Log10(x))))
	return math.Floor(x*scale) / scale
}

// rateThatFits returns the highest rate that fits by demand at the requested latency; 0 if there is none.
func (t *admitting) rateThatFits() float64 {
	low, high := 0.0, t.s.Rate
	for range offerSteps {
		middle := (low + high) / 2
		if _, err := t.testDemand(middle, t.s.Latency, offerResolution); err == nil {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// latencyThatFits returns the shortest latency that fits by demand at the requested rate; 0 if there is none.
func (t *admitting) latencyThatFits() time.Duration {
	low, high := t.s.Latency, t.s.Latency*offerLatencyMax

	// A rate that does not fit at eight times the latency needs more GPUs, not more time.
	if _, err := t.testDemand(t.s.Rate, high, offerResolution); err != nil {
		return 0
	}

	for range offerSteps {
		middle := (low + high) / 2
		if _, err := t.testDemand(t.s.Rate, middle, offerResolution); err == nil {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
