package plan

import (
	"math"
	"time"
)

const (
	forecastTrend  = 10 * time.Second // time over which a trend is measured, and for which it is extrapolated
	forecastMemory = 10 * time.Minute // time over which errors are remembered
	forecastMargin = 0.5              // of the root mean square error
	forecastNoise  = 0.1              // of the root of the demand; the least margin, because requests arrive at random
)

// forecast predicts the demand at the time when GPUs ordered now begin to serve.
type forecast struct {
	recent []demandAt // of the last forecastTrend
	made   []demandAt // predictions that cannot be compared yet, oldest first
	judged time.Duration
	square float64 // mean of (demand − expected)² for demand above the expectation, in GPUs²
}

type demandAt struct {
	at     time.Duration
	demand float64
}

// expect adds the demand measured at now, in GPUs, since after the previous one. It returns the demand to prepare for
// after start.
//
// The growth of demand gives the prediction. The shortfall of earlier predictions gives the margin. So a load that
// jumps gets a larger margin than one that drifts, and many services get a smaller share than few.
func (f *forecast) expect(now, since, start time.Duration, demand float64) float64 {
	f.learnError(now, since, start, demand)

	old := 0
	for ; old < len(f.recent) && now-f.recent[old].at >= forecastTrend; old++ {
	}
	f.recent = append(append(f.recent[:0], f.recent[old:]...), demandAt{now, demand})

	// Only growth is extrapolated: falling demand may rise again before a GPU that was given up is replaced.
	expected := demand + max(0, slope(f.recent))*min(start, forecastTrend).Seconds()
	f.made = append(f.made, demandAt{now, expected})
	return expected + max(forecastMargin*math.Sqrt(f.square), forecastNoise*math.Sqrt(demand))
}

// learnError learns from the latest prediction that is as old as a start.
func (f *forecast) learnError(now, since, start time.Duration, demand float64) {
	due := 0
	for ; due < len(f.made) && now-f.made[due].at >= start; due++ {
	}
	if due == 0 {
		return
	}

	short := max(0, demand-f.made[due-1].demand)
	f.made = append(f.made[:0], f.made[due:]...)

	// A plain mean of all errors until forecastMemory has passed, and an exponential one from then on.
	f.judged = min(f.judged+since, forecastMemory)
	if f.judged > 0 {
		f.square += (short*short - f.square) * min(1, since.Seconds()/f.judged.Seconds())
	}
}

// slope returns the growth of demand per second, by least squares; 0 if less than half of forecastTrend is known.
func slope(s []demandAt) float64 {
	last := s[len(s)-1].at
	if last-s[0].at < forecastTrend/2 {
		return 0
	}

	// Count times from the last one, so that a clock far from 0 costs no precision.
	var t, d float64
	for _, x := range s {
		t, d = t+(x.at-last).Seconds(), d+x.demand
	}
	t, d = t/float64(len(s)), d/float64(len(s))

	var with, own float64
	for _, x := range s {
		away := (x.at - last).Seconds() - t
		with, own = with+away*(x.demand-d), own+away*away
	}
	return with / own
}
