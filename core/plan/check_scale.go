package plan

import (
	"fmt"
	"math"
	"time"
)

// CheckAdvice reports where a Scaler's last advice does not follow from all its observations. It goes through the
// whole history for each rule.
func CheckAdvice(targets Targets, least, most int, start time.Duration, at []time.Duration, loads []Load, a Advice) error {
	last := len(loads) - 1
	now, l := at[last], loads[last]

	wanted := wantedBefore(targets, start, at, loads)
	step, stepAt, stepFor := stepForBad(targets, at, loads)

	want := 0
	for i := last; i >= 0 && now-at[i] <= 30*time.Second; i-- {
		want = max(want, wanted[i])
	}
	if now-stepAt <= stepFor {
		want = max(want, step)
	}
	if now-at[0] < 30*time.Second {
		want = max(want, l.Ordered)
	}
	if want = min(max(want, least), most); a.GPUs != want {
		return fmt.Errorf("%d GPUs advised (%v), the rules lead to %d: wanted %d now, %d for bad requests at %v", a.GPUs, a.Reason, want, wanted[last], step, stepAt)
	}
	return nil
}

// wantedBefore returns the GPUs wanted at each moment. They are for the demand expected after a start, plus half of
// the past errors of that expectation, or a tenth of the root of the demand.
func wantedBefore(targets Targets, start time.Duration, at []time.Duration, loads []Load) []int {
	wanted := make([]int, len(loads))
	square, judged := 0.0, 0.0
	for i := range loads {
		// The newest expectation that is as old as a start counts, once.
		for k := i; k >= 0; k-- {
			if at[i]-at[k] < start {
				continue
			}
			if i > 0 && at[i-1]-at[k] >= start {
				break
			}

			since := (at[i] - at[i-1]).Seconds()
			judged = math.Min(600, judged+since)
			short := math.Max(0, loads[i].Demand-expectedAt(start, at[:k+1], loads))
			square += (short*short - square) * since / judged
			break
		}
		wanted[i] = fewestGPUs(targets, expectedAt(start, at[:i+1], loads)+math.Max(math.Sqrt(square)/2, math.Sqrt(loads[i].Demand)/10))
	}
	return wanted
}

// stepForBad returns the last step up for bad requests. Each step follows from the five seconds before it, without
// the bad requests of seconds with too few GPUs.
func stepForBad(targets Targets, at []time.Duration, loads []Load) (step int, stepAt, stepFor time.Duration) {
	for i := range loads {
		requests, bad := 0, 0
		for k := i; k >= 0 && at[i]-at[k] < 5*time.Second; k-- {
			requests += loads[k].Requests
			if loads[k].GPUs >= fewestGPUs(targets, loads[k].Demand) {
				bad += loads[k].Bad
			}
		}

		// At most four times the GPUs that the demand needs, and never fewer than there are.
		share, n := math.Min(0.5, float64(bad)/math.Max(1, float64(requests))), loads[i].GPUs
		gpus := n + int(math.Ceil(float64(n)*share/(1-share)-1e-9))
		gpus = min(gpus, 4*max(1, fewestGPUs(targets, loads[i].Demand)))
		if share <= 0.01 || gpus <= n || at[i] <= stepAt+stepFor && gpus < step {
			continue
		}

		// Soon after the previous step was given up, a step lasts twice as long.
		if stepFor == 0 || at[i] > stepAt+3*stepFor {
			stepFor = 30 * time.Second
		} else if at[i] > stepAt+stepFor {
			stepFor = min(2*stepFor, 10*time.Minute)
		}
		step, stepAt = gpus, at[i]
	}
	return step, stepAt, stepFor
}

// fewestGPUs counts upwards.
func fewestGPUs(targets Targets, demand float64) int {
	for n := 0; ; n++ {
		if n > 0 && demand <= targets.At(n)*float64(n) || n == 0 && demand <= 0 {
			return n
		}
	}
}

// expectedAt returns the demand expected a start after the last of some moments, by the line through those of its
// last ten seconds.
func expectedAt(start time.Duration, at []time.Duration, loads []Load) float64 {
	last := len(at) - 1
	demand := loads[last].Demand
	first := last
	for first > 0 && at[last]-at[first-1] < 10*time.Second {
		first--
	}
	if at[last]-at[first] < 5*time.Second {
		return demand
	}

	// Least squares of y = a + b·x from sums; the forecast uses deviations from the means.
	var n, x, y, xx, xy float64
	for i := first; i <= last; i++ {
		t := (at[i] - at[first]).Seconds()
		n, x, y, xx, xy = n+1, x+t, y+loads[i].Demand, xx+t*t, xy+t*loads[i].Demand
	}
	return demand + math.Max(0, (n*xy-x*y)/(n*xx-x*x))*math.Min(10, start.Seconds())
}
