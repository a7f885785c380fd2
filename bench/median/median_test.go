package median

import (
	"slices"
	"testing"
	"time"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{5, 1, 3}, 3}, {[]float64{8, 1, 2, 4}, 3}} {
		before := slices.Clone(c.values)
		if got := Of(c.values); got != c.want || !slices.Equal(c.values, before) {
			t.Errorf("median of %v: %v, want %v; the values are %v afterwards", before, got, c.want, c.values)
		}
	}
	if got := Of([]time.Duration{1 << 62, 1<<62 + 2}); got != 1<<62+1 {
		t.Errorf("median of two large durations: %d", got)
	}
}
