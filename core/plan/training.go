package plan

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Learner is the known state of one model's learner.
type Learner struct {
	Rate   float64       // requests/s that its model answers
	Impact float64       // accuracy that drift has cost (DriftReport.Impact): the first estimate of the possible gain
	Gains  []float64     // validated gain of each of the last steps, the latest last
	Step   time.Duration // GPU time of a step
	// Drifts are the times of its last drifts, ascending, on the clock of now.
	Drifts []time.Duration
}

// TrainingValue is the value of a second of GPU time to a learner, in answers' accuracy, so it is comparable with
// Prices.Price. Share is its share of the time for learners.
type TrainingValue struct {
	Value float64
	Share float64
}

const (
	// firstSteps is the number of steps that are assumed to win back a drift's impact.
	firstSteps = 200
	// gainWeight is the weight of the latest step's gain in their mean.
	gainWeight = 0.1
)

// ValueTraining returns the value of GPU time to each learner (UNIFIED U8): g = λ·H·ΔA/s. ΔA is the expected gain of
// a step of length s, and H the expected time until the next drift, during which the gain lasts. prior is the time
// between drifts if none has been seen.
func ValueTraining(learners []Learner, now, prior time.Duration) []TrainingValue {
	out := make([]TrainingValue, len(learners))
	for i := range learners {
		l := &learners[i]
		if l.Step <= 0 || !finite(l.Rate) {
			continue // cannot be trained, or has invalid input: worth nothing
		}

		value := l.Rate * horizon(l.Drifts, now, prior).Seconds() * expectedGain(l) / l.Step.Seconds()
		if finite(value) {
			out[i].Value = value
		}
	}
	return out
}

// expectedGain begins with the impact divided by its assumed number of steps, and approaches the real gain of steps.
// A learner that has stopped gaining is worth nothing until it drifts again.
func expectedGain(l *Learner) float64 {
	gain := max(0, l.Impact) / firstSteps
	for _, g := range l.Gains {
		if !math.IsNaN(g) {
			gain += gainWeight * (g - gain)
		}
	}
	return max(0, gain)
}

// horizon returns the expected time to the next drift. Drifts come at random, so it is the mean distance of the seen
// drifts and of one more at the prior distance.
func horizon(drifts []time.Duration, now, prior time.Duration) time.Duration {
	seen := time.Duration(0)
	if len(drifts) > 0 {
		seen = max(0, now-drifts[0])
	}
	return (prior + seen) / time.Duration(1+len(drifts))
}

// ShareTraining gives spare GPU time to the learner with the largest value. It lets learners buy more if a second is
// worth more to them than its price: up to buyMost of the GPUs' time, none by default. It writes shares of the spare
// time and returns the share of all GPU time that is bought. Ties go to the first learner.
func ShareTraining(values []TrainingValue, price, buyMost float64) (bought float64) {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
		values[i].Share = 0
	}

	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b].Value, values[a].Value) })

	// Spare time has no value for a learner that learns nothing from it, so it stays idle.
	if len(order) == 0 || values[order[0]].Value <= 0 {
		return 0
	}

	// All of it goes to the best learner. Values change with every step's gain, so learners take turns by themselves.
	values[order[0]].Share = 1
	if values[order[0]].Value > price {
		bought = min(1, max(0, buyMost))
	}
	return bought
}
