package sched

import "math"

// steps estimates a service's arrival rate for prices. Beside an average over a second stands one over a tenth of it:
// where they differ by more than chance explains, demand has made a step, and the rate jumps there (decision 0350).
type steps struct {
	long, short float64 // requests/s
	lacks       float64 // seconds since the latest step that long does not reach back yet: it is an average over the others
	at          Time    // the latest update
	seen        uint32  // requests that came until then, modulo 2³²
	folded      uint32  // of those, the ones that the queue no longer counts
}

const (
	stepsLong  = 1.0 // seconds
	stepsShort = 0.1
	// stepsWide is how many standard deviations of a Poisson count the short average must leave the long one.
	stepsWide = 4
	// stepsDown is the same where the short average is the lower one. Who believes in a fall too early starts long batches of heavy
	// variants, and nothing takes them back; who believes in it late answers with lighter ones for part of a second.
	stepsDown = 8
)

// update folds the arrivals since the last one in; came is how many came so far.
func (s *steps) update(now Time, came uint32) {
	dt := float64(now.Sub(s.at)) / 1e9
	if dt <= 0 {
		return
	}

	// Arrivals are taken to have come in the middle of the time.
	n := float64(came - s.seen)
	s.at, s.seen = now, came

	// What came before the latest step says nothing of the rate.
	s.lacks = max(0, s.lacks-dt)
	over := stepsLong - s.lacks
	half := math.Exp(-dt / 2 / over)
	s.long = (s.long*half + n/over) * half
	half = math.Exp(-dt / 2 / stepsShort)
	s.short = (s.short*half + n/stepsShort) * half
}

// jump sets the rate to what the latest tenth of a second says of it, or what all have in common.
func (s *steps) jump(rate float64) { s.long, s.lacks = rate, stepsLong-stepsShort }

// Stepped says whether an average over a tenth of a second differs from one over a second, of the same arrivals, by more
// than chance explains.
func Stepped(short, long float64) bool {
	// A Poisson rate averaged exponentially over T has the variance rate / (2 T).
	deviation := math.Sqrt(max(short, long, 1) / 2 / stepsShort)
	return short-long > stepsWide*deviation || long-short > stepsDown*deviation
}
