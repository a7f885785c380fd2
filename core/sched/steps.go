package sched

import "math"

// steps estimates a service's arrival rate for prices. It keeps an average over a second and one over a tenth of it:
// when they differ by more than chance explains, demand has made a step, and the rate jumps to the short average
// (decision 0350).
type steps struct {
	long, short float64 // requests/s
	lacks       float64 // seconds before the latest step that long still covers: it averages over the rest
	at          Time    // the latest update
	seen        uint32  // requests until then, modulo 2³²
	folded      uint32  // those of them that the queue no longer counts
}

const (
	stepsLong  = 1.0 // seconds
	stepsShort = 0.1
	// stepsWide is the difference between the short and the long average, in standard deviations of a Poisson count,
	// that means a step.
	stepsWide = 4
	// stepsDown is the same for a short average below the long one. An early belief in a fall starts long batches of
	// heavy variants, which cannot be undone; a late one gives lighter answers for part of a second.
	stepsDown = 8
)

// update adds the arrivals since the last update; came is the total number so far.
func (s *steps) update(now Time, came uint32) {
	dt := float64(now.Sub(s.at)) / 1e9
	if dt <= 0 {
		return
	}

	// Arrivals count as at the middle of the interval.
	n := float64(came - s.seen)
	s.at, s.seen = now, came

	// Arrivals before the latest step say nothing about the rate.
	s.lacks = max(0, s.lacks-dt)
	over := stepsLong - s.lacks
	half := math.Exp(-dt / 2 / over)
	s.long = (s.long*half + n/over) * half
	half = math.Exp(-dt / 2 / stepsShort)
	s.short = (s.short*half + n/stepsShort) * half
}

// jump sets the rate: to the average of the latest tenth of a second, or scaled by a step of all services together.
func (s *steps) jump(rate float64) { s.long, s.lacks = rate, stepsLong-stepsShort }

// Stepped reports whether an average over a tenth of a second differs from one over a second, of the same arrivals,
// by more than chance explains.
func Stepped(short, long float64) bool {
	// A Poisson rate averaged exponentially over T has the variance rate / (2 T).
	deviation := math.Sqrt(max(short, long, 1) / 2 / stepsShort)
	return short-long > stepsWide*deviation || long-short > stepsDown*deviation
}
