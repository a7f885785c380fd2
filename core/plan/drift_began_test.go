package plan

import (
	"math/rand/v2"
	"testing"
)

// TestDriftBegan: in a window that has samples from before a drift, its beginning is found to a few samples; in one that
// has none, hardly any sample is dropped.
func TestDriftBegan(t *testing.T) {
	const dim, size, many = 16, 120, 200
	r := rand.New(rand.NewPCG(1, 1))
	draw := func(n int, shift float64) (f Features) {
		f.Dim = dim
		for i := range n * dim {
			v := r.NormFloat64()
			if i%dim < 4 {
				v += shift
			}
			f.Values = append(f.Values, float32(v))
		}
		return f
	}

	for _, began := range []int{0, 10, 60, 100} {
		far := 0
		for range many {
			recent := draw(began, 0)
			recent.Values = append(recent.Values, draw(size-began, 1).Values...)
			if got := DriftBegan(draw(256, 0), recent); got < began-5 || got > began+5 {
				far++
			}
		}
		if far > many/20 {
			t.Errorf("a drift at sample %d of %d is found more than 5 samples away in %d of %d windows", began, size, far, many)
		}
	}
}
