package learn

import (
	"slices"
	"testing"
)

// TestMayForgetForAGain: of 100 samples of the first data, which the first weights answer rightly, a candidate and the
// serving weights answer some wrongly. A candidate may lose two points, as much more as it gains, or as much as what
// serves has lost.
func TestMayForgetForAGain(t *testing.T) {
	const n = 100
	old := make([]Sample, n)
	for i := range old {
		old[i].Input = []byte{0}
	}
	losing := func(lost int) *judge {
		j := &judge{batch: 1, seen: map[*byte]sight{}}
		for i, s := range old {
			j.seen[&s.Input[0]] = sight{right: []bool{i >= lost}}
		}
		return j
	}

	for _, c := range []struct {
		candidate, serving int // answered wrongly
		gain               float64
		tooMuch            bool
	}{
		{2, 0, 0, false}, {3, 0, 0, true}, {3, 0, -0.05, true},
		{5, 0, 0.035, false}, {6, 0, 0.035, true},
		{9, 9, 0, false}, {10, 9, 0, true}, {10, 9, 0.09, false},
	} {
		l := &Learner{samples: &samples{judgesOld: old}, first: slices.Repeat([]bool{true}, n), serving: losing(c.serving)}
		kept, tooMuch, err := l.forgets(&Report{}, losing(c.candidate), c.gain)
		if err != nil || tooMuch != c.tooMuch || kept.gain() != -float64(c.candidate)/n {
			t.Errorf("%+v: kept %v, too much: %v, %v", c, kept.gain(), tooMuch, err)
		}
	}
}

// TestTheFirstVersionStaysKnown: however many others served when a drift came, the first one is tried again.
func TestTheFirstVersionStaysKnown(t *testing.T) {
	first := Version{Number: 1, Weights: []float32{0}}
	l := &Learner{start: first, known: []Version{first}}
	for i := range 3 * knownMost {
		l.versions = []Version{{Number: 2 + i, Weights: []float32{float32(1 + i)}}}
		l.keepKnown()
	}
	if len(l.known) != knownMost || l.known[0].Number != 1 || l.known[1].Number != 2*knownMost+3 {
		t.Errorf("%d known, the first two %d and %d", len(l.known), l.known[0].Number, l.known[1].Number)
	}
}
