package sched

import (
	"math"
	"math/bits"
)

// Pace says how much waiting for a model's next request is worth, as a function of the time since its last one. This is
// the hazard of the gaps between requests, taken as constant within an octave of the gap, times the saving of one more
// request in a batch (see worth).
//
// Pace[j] is the integral from 0 to the end of octave j. The last octave has no end; its entry is the hazard per
// nanosecond. For Poisson arrivals the integral is λ times the gap. After a burst it hardly grows, and for regular
// arrivals it grows most at their period. Pace contains no pointers, so a Candidate carries it by value.
type Pace [paceOctaves]float32

const (
	paceOctaves = 12
	paceShift   = 17      // the first octave ends at 131 µs, the last begins at 134 ms
	gapsMax     = 1 << 13 // above this the counts are halved, so that old gaps fade
	gapsLeast   = 16      // fewer gaps say nothing about bursts
	gapsPrior   = 2       // the weight, in gaps per octave, of the rate alone
)

// octave returns the octave of a gap.
func octave(gap Duration) int {
	return min(paceOctaves-1, bits.Len64(uint64(gap)>>paceShift))
}

// bounds returns the start and the width of an octave, in ns.
func bounds(j int) (from, width float64) {
	if j == 0 {
		return 0, 1 << paceShift
	}
	from = float64(int64(1) << (paceShift + j - 1))
	return from, from
}

// sum returns the worth of waiting from a request's arrival until the end of a gap.
func (p *Pace) sum(gap Duration) float64 {
	j := octave(max(0, gap))
	from, width := bounds(j)
	rest := float64(max(0, gap)) - from
	if j == 0 {
		return float64(p[0]) * rest / width
	}

	// The entry of the last octave is its hazard.
	if j == paceOctaves-1 {
		return float64(p[j-1]) + float64(p[j])*rest
	}
	return float64(p[j-1]) + float64(p[j]-p[j-1])*rest/width
}

// slowest returns the least by which sum grows in a nanosecond.
func (p *Pace) slowest() float64 {
	least := float64(p[paceOctaves-1])
	before := 0.0
	for j := range paceOctaves - 1 {
		_, width := bounds(j)
		least = min(least, (float64(p[j])-before)/width)
		before = float64(p[j])
	}
	return least
}

// gap is the inverse of sum.
func (p *Pace) gap(sum float64) Duration {
	before := 0.0
	for j := range paceOctaves - 1 {
		if end := float64(p[j]); sum <= end {
			from, width := bounds(j)
			return Duration(from + width*max(0, sum-before)/max(1e-9, end-before))
		}
		before = float64(p[j])
	}
	from, _ := bounds(paceOctaves - 1)
	return Duration(min(1<<62, from+(sum-before)/max(1e-18, float64(p[paceOctaves-1]))))
}

// growth returns the share by which a batch of n is expected to grow between now and execAt, weighted by what that
// growth is worth. last is the latest arrival.
func (p *Pace) growth(now, last, execAt Time, n int) float64 {
	if execAt <= now {
		return 0
	}
	return (p.sum(execAt.Sub(last)) - p.sum(now.Sub(last))) / float64(max(1, n))
}

// early returns the time at which the growth expected until execAt falls to limit.
func (p *Pace) early(last, execAt Time, n int, limit float64) Time {
	// The sum grows with time, so its inverse gives the time.
	left := p.sum(execAt.Sub(last)) - limit*float64(max(1, n))
	if left <= 0 {
		return last
	}
	return min(execAt, last.Add(p.gap(left)))
}

// worth returns the weight of growth for batches of about t requests.
//
// When GPU time is short, a request that misses its batch costs a share of another batch's ℓ(0). Growth then counts by
// the share of ℓ(t) that does not depend on the number of requests, relative to 1/√t, the random variation of a batch's
// size. When GPU time is plentiful, the weight is 1: large batches keep the busy fraction proportional to the load. A
// model that gains next to nothing from batching runs at once at any load.
func (m *model) worth(t int) float64 {
	share := 1 - float64(m.exec[t+1]-m.exec[t])*float64(t)/float64(m.exec[t])
	if m.single = share < worthMin; m.single {
		return worthMin
	}
	return 1 + (share*math.Sqrt(float64(t))-1)*scarcity(m.load)
}

// worthMin is the share of ℓ(t) that batching must be able to save for a model to wait.
const worthMin = 0.02

// scarcity returns how scarce GPU time is at a load u, from 0 to 1.
func scarcity(u float64) float64 { return max(0, min((u-scarce)/(full-scarce), 1)) }

// GPU time gets scarce from the load scarce on, and is all in use at full.
const (
	scarce = 0.90
	full   = 0.95
)

// gaps counts every fourth gap between a model's requests, by octave.
type gaps [paceOctaves]uint32

// arrive records that a request arrives now.
func (m *model) arrive(now Time) {
	// Every fourth gap is enough, and costs a quarter.
	if m.q.came()&3 == 0 {
		m.gaps[octave(now.Sub(m.last))]++
	}
	m.last = now
}

// burstiness returns the share of gaps within the first octave in excess of that of Poisson arrivals: 0 for Poisson
// arrivals, nearly 1 if most requests arrive in bursts.
func (g *gaps) burstiness(perNS float64) float64 {
	all := 0.0
	for _, n := range g {
		all += float64(n)
	}
	_, width := bounds(0)
	return max(0, float64(g[0])/max(gapsLeast, all)-(1-math.Exp(-perNS*width)))
}

// pace computes the Pace. The hazard of an octave is the number of gaps that ended in it over the time spent in it,
// times worth. Without an estimated rate the next request is expected at once, so the model defers.
func (g *gaps) pace(perNS, worth float64) (p Pace) {
	longer := 0.0
	for j := paceOctaves - 1; j >= 0; j-- {
		_, width := bounds(j)

		n := float64(g[j])
		hazard := 1.0
		if perNS > 0 {
			hazard = worth * (n + gapsPrior*perNS*width) / (longer*width + n*width/2 + gapsPrior*width)
		}

		if j == paceOctaves-1 {
			width = 1 // the entry of the last octave is its hazard
		}
		p[j] = float32(hazard * width)
		longer += n
	}

	// The sum stays in a register: reading back the one just stored would wait for the store.
	sum := p[0]
	for j := 1; j < paceOctaves-1; j++ {
		sum += p[j]
		p[j] = sum
	}

	// Halve the counts, so that the pace follows changes.
	if longer > gapsMax {
		for j := range g {
			g[j] /= 2
		}
	}
	return p
}
