package plan

import (
	"fmt"
	"math"
)

// Features are activations of a model's penultimate layer for some inputs: Dim numbers for each, one
// input after another.
type Features struct {
	Dim    int
	Values []float32
}

// Answers counts labelled inputs, drawn at random, and those that a model answered rightly.
type Answers struct {
	Labelled, Right int
}

// DriftReport is what a period's inputs say about a model.
type DriftReport struct {
	Drifted bool
	// The probabilities that inputs which did not drift look at least so different, by their features,
	// and lose at least so many right answers.
	FeatureP, AnswerP float64
	// Impact is the accuracy lost, AdaInf's impact degree, and an interval that holds it with 95 %.
	Impact, ImpactLow, ImpactHigh float64
}

const (
	// driftSamples is the most inputs of each side that are compared; of more, evenly spaced ones are.
	driftSamples = 256
	// driftShuffles sets how finely FeatureP is known: to 1 in 400.
	driftShuffles = 399
)

// Drift compares a period with the data that a model was trained for (AdaInf §3.2, UNIFIED A1). AdaInf
// compares accuracy on the samples that differ most with accuracy on ordinary ones, which is lower
// without any drift, and looks again and again at growing samples. Here both sides are random samples,
// there is one look, and level bounds the share of periods without drift that raise an alarm: half of it
// for each of two tests, of the features by their energy distance under random exchange of the two sides
// (Székely and Rizzo 2004), which finds drift that no label has shown yet, and of right answers by
// Fisher's exact test, one-sided. Either side of either test may be empty: it then says nothing.
func Drift(old, recent Features, oldAnswers, recentAnswers Answers, level float64) (DriftReport, error) {
	if !(level > 0 && level < 1) {
		return DriftReport{}, refuse("level", level, "more than 0 and less than 1")
	}
	for name, a := range [2]Answers{oldAnswers, recentAnswers} {
		if a.Right < 0 || a.Right > a.Labelled || a.Labelled > 1<<30 {
			return DriftReport{}, refuse([2]string{"old", "recent"}[name]+" answers: right and labelled", [2]int{a.Right, a.Labelled}, "0 ≤ right ≤ labelled ≤ 2³⁰")
		}
	}
	for name, f := range [2]Features{old, recent} {
		if err := f.validate([2]string{"old", "recent"}[name]); err != nil {
			return DriftReport{}, err
		}
	}

	if old.Dim != recent.Dim {
		return DriftReport{}, refuse("recent features: dimension", recent.Dim, fmt.Sprintf("that of the old ones, %d", old.Dim))
	}

	// Half of the level for each test: together they raise no more false alarms than one would (Bonferroni).
	r := DriftReport{FeatureP: featureP(old.thin(), recent.thin()), AnswerP: answerP(oldAnswers, recentAnswers)}
	r.Drifted = r.FeatureP <= level/2 || r.AnswerP <= level/2
	r.Impact, r.ImpactLow, r.ImpactHigh = accuracyLoss(oldAnswers, recentAnswers)
	return r, nil
}

func (f Features) validate(name string) error {
	if f.Dim < 1 || len(f.Values)%f.Dim != 0 {
		return refuse(name+" features: numbers and dimension", [2]int{len(f.Values), f.Dim}, "a dimension of 1 or more that divides the numbers")
	}

	for i, x := range f.Values {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			return refuse(fmt.Sprintf("%s features: input %d, number %d", name, i/f.Dim, i%f.Dim), x, "a finite number")
		}
	}
	return nil
}

// thin keeps at most driftSamples inputs.
func (f Features) thin() Features {
	n := len(f.Values) / f.Dim
	if n <= driftSamples {
		return f
	}

	kept := Features{Dim: f.Dim}
	for i := range driftSamples {
		at := i * n / driftSamples * f.Dim
		kept.Values = append(kept.Values, f.Values[at:at+f.Dim]...)
	}
	return kept
}

// featureP is the share of random divisions of all inputs into two sides that are at least as far apart as
// the real ones, the real one counted. It is below p in a share p of the periods without drift, whatever
// the features' distribution is.
func featureP(old, recent Features) float64 {
	n, m := len(old.Values)/old.Dim, len(recent.Values)/recent.Dim
	if n < 2 || m < 2 {
		return 1
	}

	distance := distances(old, recent, n+m)
	side := make([]int, n+m) // the inputs of the one side, then those of the other
	for i := range side {
		side[i] = i
	}

	// The real division is one of the divisions, so the share is never 0.
	real := energy(distance, side, n)
	atLeast, state := 1, uint64(1)
	for range driftShuffles {
		for i := range n { // the first n of a random order, from a fixed sequence of numbers
			state = state*6364136223846793005 + 1442695040888963407
			k := i + int(state>>33%uint64(n+m-i))
			side[i], side[k] = side[k], side[i]
		}
		if energy(distance, side, n) >= real*(1-1e-9) {
			atLeast++
		}
	}
	return float64(atLeast) / (driftShuffles + 1)
}

// distances are Euclidean, between all inputs.
func distances(old, recent Features, n int) [][]float32 {
	// The distances are computed once; each of the hundreds of divisions only sums them in another way.
	at := func(i int) []float32 {
		if first := len(old.Values) / old.Dim; i >= first {
			return recent.Values[(i-first)*old.Dim:][:old.Dim]
		}
		return old.Values[i*old.Dim:][:old.Dim]
	}

	d := make([][]float32, n)
	for i := range d {
		d[i] = make([]float32, n)
		for k := range i {
			sum := 0.0
			x, y := at(i), at(k)
			for c := range x {
				diff := float64(x[c]) - float64(y[c])
				sum += diff * diff
			}
			d[i][k] = float32(math.Sqrt(sum))
			d[k][i] = d[i][k]
		}
	}
	return d
}

// energy is the energy distance of two sides: twice the mean distance between them, less the mean
// distances within each.
func energy(distance [][]float32, side []int, n int) float64 {
	m := len(side) - n
	var within, beyond, across float64

	for i, a := range side {
		row := distance[a]
		if i >= n {
			for _, b := range side[n:i] {
				beyond += float64(row[b])
			}
			continue
		}
		for _, b := range side[:i] {
			within += float64(row[b])
		}
		for _, b := range side[n:] {
			across += float64(row[b])
		}
	}

	// Pairs within a side were counted once, and stand in its mean twice.
	fn, fm := float64(n), float64(m)
	return 2*across/(fn*fm) - 2*within/(fn*fn) - 2*beyond/(fm*fm)
}
