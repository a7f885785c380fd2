package plan

import (
	"slices"
	"testing"
	"time"
)

func TestSLOInForce(t *testing.T) {
	const ms = time.Millisecond
	for _, x := range []struct{ operator, backend, one, want time.Duration }{
		{9 * ms, 7 * ms, ms, 9 * ms}, {0, 7 * ms, ms, 7 * ms}, {0, 0, ms, 50 * ms}, {0, 0, 20 * ms, 80 * ms}} {
		if got := SLOInForce(x.operator, x.backend, x.one); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

func TestLargestHomes(t *testing.T) {
	if got := LargestHomes([]int{3, 1, 3, 9, 3}, 3); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("three of five: %v", got)
	}
	if got := LargestHomes([]int{3, 1}, 3); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("all of two: %v", got)
	}
}
