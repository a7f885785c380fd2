package plan

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestTrainingIsWorthWhatItWins: the value is in proportion to the rate, to the gain of a second and to the time that it
// lasts.
func TestTrainingIsWorthWhatItWins(t *testing.T) {
	const step, prior, now = 10 * time.Millisecond, 100 * time.Second, 200 * time.Second
	for _, c := range []struct {
		name  string
		of    Learner
		value float64
	}{
		{"100 answers/s, for 100 s, of which a step of 10 ms wins 0.05 %", Learner{Rate: 100, Gain: 5e-4, Step: step}, 500},
		{"half of the gain", Learner{Rate: 100, Gain: 2.5e-4, Step: step}, 250},
		{"steps twice as long", Learner{Rate: 100, Gain: 5e-4, Step: 2 * step}, 250},
		{"three times the rate", Learner{Rate: 300, Gain: 5e-4, Step: step}, 1500},
		{"drifts every 100 s, the first 100 s ago", Learner{Rate: 100, Gain: 5e-4, Step: step, Drifts: []time.Duration{100e9, 200e9}}, 500 * 2 / 3.0},
		{"no step", Learner{Rate: 100, Gain: 5e-4}, 0},
		{"no rate", Learner{Rate: math.NaN(), Gain: 5e-4, Step: step}, 0},
		{"a negative gain", Learner{Rate: 100, Gain: -1, Step: step}, 0},
	} {
		if got := TrainingValue(&c.of, now, prior); abs(got-c.value) > 1e-6 {
			t.Errorf("%s: %v, want %v", c.name, got, c.value)
		}
	}
}

// TestWeightsFollowValues: the largest value and an infinite one have the weight 1, others in proportion, and none less
// than a quarter.
func TestWeightsFollowValues(t *testing.T) {
	for _, c := range []struct{ values, want []float64 }{
		{nil, []float64{}},
		{[]float64{7}, []float64{1}},
		{[]float64{0, 0}, []float64{1, 1}},
		{[]float64{3, 8, 4}, []float64{0.375, 1, 0.5}},
		{[]float64{1, 1000, 0}, []float64{0.25, 1, 0.25}},
		{[]float64{math.NaN(), 2, math.Inf(1), -1, 1}, []float64{0.25, 1, 1, 0.25, 0.5}},
		{[]float64{math.Inf(1), 0, math.Inf(-1)}, []float64{1, 1, 1}},
	} {
		if got := WeighTraining(c.values); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
}

// TestGainFallsAfterADrift: it begins with what the drift has cost, falls smoothly with the steps, and is never 0.
func TestGainFallsAfterADrift(t *testing.T) {
	var g TrainingGain
	calm := g.OfStep()
	if calm <= 0 {
		t.Fatalf("%v before any drift, want more than 0", calm)
	}

	g.NoteDrift(0.1)
	before := g.OfStep()
	if abs(before-calm-0.1/gainSteps) > 1e-12 {
		t.Errorf("%v after a drift that cost 0.1", before)
	}
	for range 5 * gainSteps {
		g.NoteStep()
		now := g.OfStep()
		if now >= before || now < 0.99*before || now < calm {
			t.Fatalf("from %v to %v in a step, %v is the least", before, now, calm)
		}
		before = now
	}
	if before > 1.1*calm {
		t.Errorf("%v after %d steps, want about %v", before, 5*gainSteps, calm)
	}

	for _, impact := range []float64{-0.1, math.NaN(), 0} {
		if g.NoteDrift(impact); g.OfStep() != calm {
			t.Errorf("%v after a drift that cost %v", g.OfStep(), impact)
		}
	}
}

// TestGainsCorrectWhatRemains: a version that gains more than expected says that there is more to win, one that gains less
// the opposite; the same gains always give the same estimate.
func TestGainsCorrectWhatRemains(t *testing.T) {
	after := func(gains ...float64) float64 {
		var g TrainingGain
		g.NoteDrift(0.1)
		for _, gain := range gains {
			for range 20 {
				g.NoteStep()
			}
			g.NotePublished(gain)
		}
		return g.OfStep()
	}

	little, expected, much := after(0), after(0.1*(1-math.Pow(1-1.0/gainSteps, 20))), after(0.08)
	var g TrainingGain
	g.NoteDrift(0.1)
	for range 20 {
		g.NoteStep()
	}
	if abs(expected-g.OfStep()) > 1e-12 || !(little < expected && expected < much) {
		t.Errorf("%v, %v, %v after gains of nothing, of what was expected (%v) and of much", little, expected, much, g.OfStep())
	}
	if after(math.NaN(), math.Inf(1)) <= 0 || after(0, 0, 0, 0, 0, 0) <= 0 || after(1e9) > leastGain+remainingMost/gainSteps {
		t.Error("a gain that is none, or too large, is believed")
	}
	if a, b := after(0.03, 0.01), after(0.03, 0.01); a != b {
		t.Errorf("%v and %v of the same gains", a, b)
	}
}
