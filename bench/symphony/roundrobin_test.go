package symphony

import (
	"math"
	"testing"
)

// TestUncoordinatedFrontendsAddVariance: F frontends that start anywhere add about F·x(1−x), x the fraction of a
// request that each sends to a backend in a window.
func TestUncoordinatedFrontendsAddVariance(t *testing.T) {
	for _, c := range []struct{ rate, window float64 }{{10000, 0.4}, {2000, 0.2}} {
		for _, f := range []int{5, 25, 50} {
			mean, deviation := roundRobin{c.rate, c.window, f}.windowDeviation(1000, 7)
			if want := c.rate * c.window / roundRobinBackends; math.Abs(mean-want) > 0.02*want {
				t.Errorf("%+v, %d frontends: mean %v, want %v", c, f, mean, want)
			}

			_, alone := roundRobin{c.rate, c.window, 1}.windowDeviation(1000, 7)
			_, x := math.Modf(c.rate * c.window / float64(f) / roundRobinBackends)
			t.Logf("%d frontends: %.3f, one %.3f, formula %.3f", f, deviation, alone, math.Sqrt(float64(f)*x*(1-x)))
			if deviation < 1.3*alone && f > 5 {
				t.Errorf("%+v, %d frontends: deviation %.3f, alone %.3f: want more", c, f, deviation, alone)
			}
		}
	}
}
