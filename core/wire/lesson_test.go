package wire

import (
	"math"
	"testing"
)

// TestTheLengthTellsAHead lets a reader find the head of every number of samples that a writer may send.
func TestTheLengthTellsAHead(t *testing.T) {
	refused := 0
	for _, input := range []int{1, 2, 12, 27, 60} {
		for n := 1; n < 200; n++ {
			if got := HeadOf(n*(LessonHead+input), input); got != LessonHead {
				t.Fatalf("%d samples of %d bytes have a head of %d, want %d", n, input, got, LessonHead)
			}
			if !SureFits(n, input) {
				refused++
				continue
			}
			if got := HeadOf(n*(SureHead+input), input); got != SureHead {
				t.Fatalf("%d sure samples of %d bytes have a head of %d, want %d", n, input, got, SureHead)
			}
		}
	}
	if refused == 0 || SureFits(8, 12) { // 8·18 = 9·16 bytes
		t.Errorf("%d numbers of samples are ambiguous, want some", refused)
	}
}

// TestProbabilitiesArePacked to about five digits, and 0 differs from what is not known.
func TestProbabilitiesArePacked(t *testing.T) {
	for _, p := range []float32{0, 1e-6, 0.25, 0.5, 0.999, 1} {
		packed := PackProbability(p)
		if got := UnpackProbability(packed); packed == 0 || got <= 0 || got > 1 || math.Abs(float64(got-p)) > 3e-5 {
			t.Errorf("%v is packed as %d and unpacked as %v", p, packed, got)
		}
	}
	if UnpackProbability(0) != 0 {
		t.Error("what is not known has a probability")
	}
}
