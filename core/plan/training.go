package plan

import (
	"math"
	"time"
)

// Learner is the known state of one model's learner.
type Learner struct {
	Rate float64       // requests/s that its model answers
	Gain float64       // expected gain of a step in accuracy: see TrainingGain
	Step time.Duration // GPU time of a step
	// Drifts are the times of its last drifts, ascending, on the clock of now.
	Drifts []time.Duration
}

// TrainingValue returns the value of a second of GPU time to a learner, in answers that become right (UNIFIED U8):
// g = λ·H·ΔA/s. ΔA is the expected gain of a step of length s, and H the expected time until the next drift, during
// which the gain lasts. prior is the time between drifts if none has been seen. A learner that cannot be trained, or
// has invalid input, has no value.
func TrainingValue(l *Learner, now, prior time.Duration) float64 {
	if l.Step <= 0 {
		return 0
	}

	value := l.Rate * expectDrift(l.Drifts, now, prior).Seconds() * l.Gain / l.Step.Seconds()
	if !finite(value) {
		return 0
	}
	return max(0, value)
}

// expectDrift returns the expected time to the next drift. Drifts come at random, so it is the mean distance of the
// seen drifts and of one more at the prior distance.
func expectDrift(drifts []time.Duration, now, prior time.Duration) time.Duration {
	seen := time.Duration(0)
	if len(drifts) > 0 {
		seen = max(0, now-drifts[0])
	}
	return (prior + seen) / time.Duration(1+len(drifts))
}

// weightLeast is the least weight of a learner: it must be able to look for drift and to judge, whatever others gain.
const weightLeast = 1.0 / 4

// WeighTraining returns the learners' weights in spare time, in proportion to the values of GPU time to them: 1 for
// the largest value and for infinite ones, and a quarter at least.
func WeighTraining(values []float64) []float64 {
	most := 0.0
	for _, v := range values {
		if finite(v) {
			most = max(most, v)
		}
	}

	weights := make([]float64, len(values))
	for i, v := range values {
		switch {
		case most == 0 || math.IsInf(v, 1):
			weights[i] = 1 // if no value is known, all are alike
		case finite(v):
			weights[i] = max(weightLeast, v/most)
		default:
			weights[i] = weightLeast
		}
	}
	return weights
}
