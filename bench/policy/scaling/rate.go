package scaling

import (
	"math"

	"downbeat.dev/core/sched"
)

const (
	rateMemory = 1.0 // seconds over which a family's rate is averaged
	stepMemory = 0.1 // seconds over which a step of the demand shows
	// stepSigmas is how many standard deviations of a Poisson count the short average must leave the long one.
	stepSigmas = 4
)

// rate is a family's requests/s as two exponential averages.
type rate struct {
	long, short float64
	counted     sched.Time
}

func (r *rate) countRequest(now sched.Time) {
	r.decay(now)
	r.long += 1 / rateMemory
	r.short += 1 / stepMemory
}

func (r *rate) decay(now sched.Time) {
	since := float64(now.Sub(r.counted)) / 1e9
	r.long *= math.Exp(-since / rateMemory)
	r.short *= math.Exp(-since / stepMemory)
	r.counted = now
}

// longAt returns the rate.
func (r *rate) longAt(now sched.Time) float64 {
	r.decay(now)
	return r.long
}

// stepped reports whether a short average differs from a long one by more than chance explains.
func stepped(short, long float64) bool {
	// A Poisson rate averaged exponentially over T has the variance rate / (2 T).
	deviation := math.Sqrt(max(short, long, 1) / 2 / stepMemory)
	return math.Abs(short-long) > stepSigmas*deviation
}

// followSteps makes rates jump where demand did: a family's own, or those of all families together, which show
// a common step sooner.
func (p *pooled) followSteps(now sched.Time) {
	long, short := 0.0, 0.0
	for i := range p.families {
		r := &p.families[i].rate
		r.decay(now)
		long += r.long
		short += r.short
		if stepped(r.short, r.long) {
			r.long = r.short
		}
	}

	// All families together show a step that is too small to show in each.
	if !stepped(short, long) {
		return
	}
	for i := range p.families {
		p.families[i].rate.long *= short / max(long, 1)
	}
}
