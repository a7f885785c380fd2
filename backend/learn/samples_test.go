package learn

import "testing"

// TestDriftSamplesAreTrainedOnLater: a drift sample is no training sample while a look may compare it. When its period
// ends it is one, and a reference's sample when another reference replaces it.
func TestDriftSamplesAreTrainedOnLater(t *testing.T) {
	trained := func(s *samples) map[byte]bool {
		seen := map[byte]bool{}
		for _, one := range append(s.recent.samples, s.old.samples...) {
			seen[one.Input[0]] = true
		}
		return seen
	}
	s := newSamples(nil, 1)
	s.reference = []Sample{{Input: []byte{200}}}
	number := byte(0)
	add := func(n int) {
		for range n {
			s.turn = 3 // the next is a drift sample
			s.add(Sample{Input: []byte{number}})
			number++
		}
	}

	add(40)
	if n := len(trained(s)); n != 0 {
		t.Fatalf("%d samples of the window are trained on", n)
	}
	s.endPeriod()
	if seen := trained(s); len(seen) != 40 || seen[200] || len(s.window) != 0 {
		t.Errorf("%v are trained on after the period, %d are left", seen, len(s.window))
	}

	add(10)
	s.noteDrift()
	if seen := trained(s); len(seen) != 41 || !seen[200] || seen[45] || len(s.reference) != 10 {
		t.Errorf("%v are trained on after a drift, and %d are the reference", seen, len(s.reference))
	}

	// A full window passes its oldest samples on.
	s.filling = false
	for range windowMax + 5 {
		add(1)
	}
	if n := len(s.recent.samples); n != 5 || len(s.window) != windowMax {
		t.Errorf("%d samples of the present are trained on with %d in the window, want 5", n, len(s.window))
	}
}
