package scaling

import (
	"math"

	"downbeat.dev/core/sched"
)

// demand is the load balancers' report: requests per second and family.
type demand struct {
	second   []float64    // counts of the current second
	recent   [2][]float64 // of the last two whole seconds
	smoothed []float64
	seconds  int
}

// smoothing is the weight of the newest second: pandas's com = 1.6, as in the public simulator.
const smoothing = 1 / (1 + 1.6)

func newDemand(families int) *demand {
	row := func() []float64 { return make([]float64, families) }
	return &demand{second: row(), recent: [2][]float64{row(), row()}, smoothed: row()}
}

func (d *demand) countRequest(family int32) { d.second[family]++ }

// endSecond ends a second; the one before time zero does not count.
func (d *demand) endSecond(now sched.Time) {
	// The first tick is at time zero, before any second has passed.
	if now == 0 {
		return
	}
	for f, n := range d.second {
		// The first second starts the average.
		if d.seconds == 0 {
			d.smoothed[f] = n
		} else {
			d.smoothed[f] += smoothing * (n - d.smoothed[f])
		}

		d.recent[0][f], d.recent[1][f] = d.recent[1][f], n
		d.second[f] = 0
	}
	d.seconds++
}

// fast returns the mean of the last two seconds.
func (d *demand) fast(family int) float64 {
	return (d.recent[0][family] + d.recent[1][family]) / float64(max(1, min(2, d.seconds)))
}

// leaves reports whether the rate of any family over the last two seconds leaves 0.85 to 1.05 times the planned rate
// by more than chance (two standard deviations of a Poisson count).
func (d *demand) leaves(planned []float64) bool {
	for f, rate := range planned {
		// Compare counts of two seconds: a deviation within two standard deviations of Poisson is no reason to plan
		// again.
		n, expected := 2*d.fast(f), 2*rate
		chance := 2 * math.Sqrt(max(expected, 1))
		if n > 1.05*expected && n-expected > chance || n < 0.85*expected && expected-n > chance {
			return true
		}
	}
	return false
}
