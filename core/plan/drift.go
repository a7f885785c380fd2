package plan

import (
	"fmt"
	"math"
)

// Features are activations of a model's penultimate layer for some inputs: Dim numbers for each input, one input
// after another.
type Features struct {
	Dim    int
	Values []float32
}

// Answers counts randomly drawn labelled inputs, and the model's right answers to them.
type Answers struct {
	Labelled, Right int
}

// DriftReport is the result of a comparison of a period's inputs with a model's training data.
type DriftReport struct {
	Drifted bool
	// The probabilities that inputs without drift look at least this different, by their features, and lose at least
	// this many right answers. FeatureP is an estimate if the test has ended early, and then above half of the level.
	FeatureP, AnswerP float64
	// Impact is the accuracy lost, AdaInf's impact degree, with its 95 % interval.
	Impact, ImpactLow, ImpactHigh float64
}

const (
	// driftSamples is the most inputs of each side that are compared. Of more, evenly spaced ones are taken.
	driftSamples = 256
	// driftShuffles sets the resolution of FeatureP, 1 in 2000: half of a sixth of 3 % is five of them.
	driftShuffles = 1999
)

// Drift compares a period with the data that a model was trained for (AdaInf §3.2, UNIFIED A1). AdaInf compares the
// accuracy on the samples that differ most with the accuracy on ordinary ones, which is lower even without drift, and
// repeats the comparison on growing samples. Here both sides are random samples that are compared once, and level
// bounds the share of periods without drift that raise an alarm.
//
// Each of two tests gets half of the level. One compares the features by their energy distance under random exchange
// of the two sides (Székely and Rizzo 2004); it finds drift that no label has shown yet. The other compares right
// answers by Fisher's exact test, one-sided. Either side of either test may be empty; the test then has no result.
func Drift(old, recent Features, oldAnswers, recentAnswers Answers, level float64) (DriftReport, error) {
	t, err := NewDriftTest(old, recent, oldAnswers, recentAnswers, level)
	if err != nil {
		return DriftReport{}, err
	}

	for !t.Advance(driftShuffles) {
	}
	return t.Report(), nil
}

// DriftTest runs Drift in pieces, for a caller that has little time at once. It belongs to one goroutine.
type DriftTest struct {
	report      DriftReport
	level       float64
	old, recent Features
	first       int // inputs of the smaller side

	distance []float32 // between all inputs, those of the smaller side first, row by row
	measured int       // completed rows
	sums     []float64 // of each input's distances to all others
	total    float64   // of all distances
	side     []int32   // the inputs of the smaller side, then those of the other
	real     float64
	shuffled int // -1: the real division has no energy yet
	atLeast  int // divisions at least as far apart as the real one
	state    uint64
}

// NewDriftTest begins a Drift.
func NewDriftTest(old, recent Features, oldAnswers, recentAnswers Answers, level float64) (*DriftTest, error) {
	if !(level > 0 && level < 1) {
		return nil, refuse("level", level, "more than 0 and less than 1")
	}
	for name, a := range [2]Answers{oldAnswers, recentAnswers} {
		if a.Right < 0 || a.Right > a.Labelled || a.Labelled > 1<<30 {
			return nil, refuse([2]string{"old", "recent"}[name]+" answers: right and labelled", [2]int{a.Right, a.Labelled}, "0 ≤ right ≤ labelled ≤ 2³⁰")
		}
	}
	for name, f := range [2]Features{old, recent} {
		if err := f.validate([2]string{"old", "recent"}[name]); err != nil {
			return nil, err
		}
	}

	if old.Dim != recent.Dim {
		return nil, refuse("recent features: dimension", recent.Dim, fmt.Sprintf("that of the old ones, %d", old.Dim))
	}

	t := &DriftTest{level: level, report: DriftReport{AnswerP: answerP(oldAnswers, recentAnswers), FeatureP: 1}, shuffled: -1, atLeast: 1, state: 1}
	t.report.Impact, t.report.ImpactLow, t.report.ImpactHigh = accuracyLoss(oldAnswers, recentAnswers)

	// The distance is symmetric, and the smaller side is quicker to sum.
	t.old, t.recent = old.thin(), recent.thin()
	if t.recent.rowCount() < t.old.rowCount() {
		t.old, t.recent = t.recent, t.old
	}
	t.first = t.old.rowCount()
	all := t.first + t.recent.rowCount()
	t.sums, t.distance = make([]float64, all), make([]float32, all*all)
	if t.first < 2 {
		t.shuffled = driftShuffles // a side with fewer than two inputs gives no result
	}
	return t, nil
}

// Advance performs n units of the test, each about ten microseconds at full samples, and reports whether the test has
// ended.
func (t *DriftTest) Advance(n int) (done bool) {
	for ; n > 0 && !t.ended(); n-- {
		switch {
		case t.measured < len(t.sums):
			t.measureNext()
		case t.shuffled < 0:
			t.beginShuffles()
		default:
			t.shuffle()
		}
	}
	return t.ended()
}

// ended reports whether no further division can change the result: all are made, or too many are as far apart as the real
// one (Besag and Clifford 1991). Without drift that is mostly known after a few.
func (t *DriftTest) ended() bool {
	return t.shuffled == driftShuffles || t.shuffled > 0 && float64(t.atLeast) > t.level/2*(driftShuffles+1)
}

// Report returns the result of a test that has ended.
func (t *DriftTest) Report() DriftReport {
	r := t.report
	if t.first >= 2 {
		r.FeatureP = float64(t.atLeast) / float64(t.shuffled+1)
	}

	// Each test gets half of the level, so that both together raise no more false alarms than one would (Bonferroni).
	r.Drifted = r.FeatureP <= t.level/2 || r.AnswerP <= t.level/2
	return r
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

func (f Features) rowCount() int { return len(f.Values) / f.Dim }

// input returns the features of input i, counted over both sides.
func (t *DriftTest) input(i int) []float32 {
	if i >= t.first {
		return t.recent.Values[(i-t.first)*t.old.Dim:][:t.old.Dim]
	}
	return t.old.Values[i*t.old.Dim:][:t.old.Dim]
}

// measureNext computes the Euclidean distances of one more input to the earlier ones. Each of the hundreds of
// divisions only sums these distances differently.
func (t *DriftTest) measureNext() {
	i, all := t.measured, len(t.sums)
	x := t.input(i)
	for k := range i {
		sum := 0.0
		for c, y := range t.input(k) {
			diff := float64(x[c]) - float64(y)
			sum += diff * diff
		}
		d := float32(math.Sqrt(sum))
		t.distance[i*all+k], t.distance[k*all+i] = d, d

		t.sums[i] += float64(d)
		t.sums[k] += float64(d)
		t.total += float64(d)
	}
	t.measured++
}

// beginShuffles records the distance of the real sides.
func (t *DriftTest) beginShuffles() {
	t.side = make([]int32, len(t.sums))
	for i := range t.side {
		t.side[i] = int32(i)
	}
	t.real, t.shuffled = t.energy(), 0
}

// shuffle divides all inputs at random, with a fixed sequence of numbers. The share of such divisions that are at
// least as far apart as the real one, including that one, is below p in a share p of the periods without drift,
// whatever the distribution of the features is.
func (t *DriftTest) shuffle() {
	all := len(t.side)
	for i := range t.first { // the beginning of a random order
		t.state = t.state*6364136223846793005 + 1442695040888963407
		k := i + int(t.state>>33%uint64(all-i))
		t.side[i], t.side[k] = t.side[k], t.side[i]
	}

	if t.energy() >= t.real*(1-1e-9) {
		t.atLeast++
	}
	t.shuffled++
}

// energy returns the energy distance of the two sides: twice the mean distance between them minus the mean distances
// within each.
func (t *DriftTest) energy() float64 {
	// Only the smaller side is summed pair by pair. The sums of its inputs contain the pairs within it twice and the
	// pairs across once. The rest of the total is within the other side.
	var within, sums float64
	near := t.side[:t.first]
	for i, a := range near {
		sums += t.sums[a]
		row := t.distance[int(a)*len(t.side):]
		for _, b := range near[:i] {
			within += float64(row[b])
		}
	}
	across := sums - 2*within
	beyond := t.total - within - across

	// A side's sum counts each pair once; the mean is over ordered pairs.
	n, m := float64(t.first), float64(len(t.side)-t.first)
	return 2*across/(n*m) - 2*within/(n*n) - 2*beyond/(m*m)
}
