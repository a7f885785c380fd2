package sched

import "math"

// rateSteps estimates a service's arrival rate for prices. It keeps an average over a second and one over a tenth of it:
// when they differ by more than chance explains, demand has made a step, and the rate jumps to the short average
// (decision 0350). A third, still shorter average says how far a sudden rise has gone (decision 0414).
type rateSteps struct {
	long, short, latest float64 // requests/s
	excluded            float64 // seconds of long's span that lie before the latest step, and do not count
	at                  Time    // the latest update
	seen                uint32  // requests until then, modulo 2³²
	folded              uint32  // those of them that the queue no longer counts
}

const (
	stepsLong   = 1.0 // seconds
	stepsShort  = 0.1
	stepsLatest = 0.025
	// stepsWide is the difference between the short and the long average, in standard deviations of a Poisson count,
	// that means a step.
	stepsWide = 4
	// stepsDown is the same for a short average below the long one. An early belief in a fall starts long batches of
	// heavy variants, which cannot be undone; a late one gives lighter answers for part of a second.
	stepsDown = 8
)

// update adds the arrivals since the last update; came is the total number so far.
func (s *rateSteps) update(now Time, came uint32) {
	dt := float64(now.Sub(s.at)) / 1e9
	if dt <= 0 {
		return
	}

	// All arrivals count as if they came in the middle of the interval.
	n := float64(came - s.seen)
	s.at, s.seen = now, came

	// Arrivals before the latest step say nothing about the rate.
	s.excluded = max(0, s.excluded-dt)
	over := stepsLong - s.excluded
	half := math.Exp(-dt / 2 / over)
	s.long = (s.long*half + n/over) * half
	half = math.Exp(-dt / 2 / stepsShort)
	s.short = (s.short*half + n/stepsShort) * half

	// The interval may be longer than this average, so its arrivals count as if they came evenly.
	keep := math.Exp(-dt / stepsLatest)
	s.latest = s.latest*keep + n/dt*(1-keep)
}

// jump sets the rate: to the average of the latest tenth of a second, or scaled by a step of all services together.
func (s *rateSteps) jump(rate float64) { s.long, s.excluded = rate, stepsLong-stepsShort }

// scale multiplies the rate by a step of all services together. If the step is a sudden rise, the average over a tenth of a
// second has hardly begun to follow, and would soon tell of a fall.
func (s *rateSteps) scale(by float64) {
	s.jump(s.long * by)
	if by > suddenRise {
		s.short = s.long
	}
}

// suddenRise is the factor of a step from which on it is a sudden rise.
const suddenRise = 1.5

// Stepped reports whether an average over a tenth of a second differs from one over a second, of the same arrivals,
// by more than chance explains.
func Stepped(short, long float64) bool {
	// A Poisson rate averaged exponentially over T has the variance rate / (2 T).
	deviation := math.Sqrt(max(short, long, 1) / 2 / stepsShort)
	return short-long > stepsWide*deviation || long-short > stepsDown*deviation
}
