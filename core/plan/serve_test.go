package plan

import (
	"slices"
	"testing"
	"time"
)

func TestProfilesOfOneSubCluster(t *testing.T) {
	a := []time.Duration{100, 200}
	for _, x := range []struct {
		b    []time.Duration
		want bool
	}{{[]time.Duration{114, 180}, true}, {[]time.Duration{116, 200}, false}, {[]time.Duration{100, 170}, false}, {[]time.Duration{100}, false}} {
		if AlikeProfiles(a, x.b) != x.want || AlikeProfiles(x.b, a) != x.want {
			t.Errorf("%v and %v: want %v", a, x.b, x.want)
		}
	}
	if got := SlowestProfile([]time.Duration{100, 200, 300}, []time.Duration{110, 190}); !slices.Equal(got, []time.Duration{110, 200}) {
		t.Errorf("the slowest is %v", got)
	}
}

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
