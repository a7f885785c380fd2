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

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i) // not sorted
	}
	for p := range 101 {
		if got, want := Percentile(hundred, float64(p)), time.Duration(max(p, 1)); got != want {
			t.Errorf("percentile %d of 1 to 100: %d, want %d", p, got, want)
		}
	}
	if got := Percentiles(hundred, 99.9, 50, 1); !slices.Equal(got, []time.Duration{100, 50, 1}) {
		t.Errorf("percentiles 99.9, 50 and 1 of 1 to 100: %v", got)
	}
	if hundred[0] != 100 {
		t.Error("the values are sorted afterwards")
	}

	for _, c := range []struct {
		values  []float64
		p, want float64
	}{{nil, 50, 0}, {[]float64{3}, 99, 3}, {[]float64{2, 1}, 50, 1}, {[]float64{2, 1}, 51, 2}, {[]float64{5, 1, 3}, 50, 3}, {[]float64{5, 1, 3}, 99, 5}, {[]float64{5, 1}, 100.5, 5}} {
		if got := Percentile(c.values, c.p); got != c.want {
			t.Errorf("percentile %v of %v: %v, want %v", c.p, c.values, got, c.want)
		}
	}
}
