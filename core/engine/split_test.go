package engine

import (
	"math"
	"testing"
)

// TestSplit shows that the two multiplications give the remainder.
func TestSplit(t *testing.T) {
	for n := 1; n <= PartitionsMax; n++ {
		s := newSplit(n)
		for _, m := range []uint32{0, 1, uint32(n) - 1, uint32(n), uint32(n) + 1, ModelsMax - 1, math.MaxUint32 - 1, math.MaxUint32} {
			if got, want := s.of(m), m%uint32(n); got != want {
				t.Errorf("model %d of %d partitions is in %d, want %d", m, n, got, want)
			}
		}
	}
}
