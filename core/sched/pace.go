package sched

import (
	"math"
	"math/bits"
)

// Pace tells what waiting for a model's next request is worth, by the time since its last one: the
// hazard of its gaps, constant within an octave of the gap, times what a request more in a batch saves
// (see worth). What is kept is the sum over the gap up to the end of each octave, and of the last one,
// which has no end, the hazard per nanosecond. For Poisson arrivals the sum is λ times the gap; after a
// burst it hardly grows; and of regular arrivals most lies at their period. POD, so that a Candidate
// carries it.
type Pace [paceOctaves]float32

const (
	paceOctaves = 12
	paceShift   = 17      // the first octave ends at 131 µs, the last begins at 134 ms
	gapsMax     = 1 << 13 // counted gaps are halved beyond this, so that old ones fade
	gapsLeast   = 16      // fewer tell nothing of bursts
	gapsPrior   = 2       // how many gaps the rate alone counts for in each octave
)

func octave(gap Duration) int {
	return min(paceOctaves-1, bits.Len64(uint64(gap)>>paceShift))
}

// bounds returns where an octave begins and how wide it is.
func bounds(j int) (from, width float64) {
	if j == 0 {
		return 0, 1 << paceShift
	}
	from = float64(int64(1) << (paceShift + j - 1))
	return from, from
}

// sum returns the worth of waiting from a request's arrival until a gap has passed.
func (p *Pace) sum(gap Duration) float64 {
	j := octave(max(0, gap))
	from, width := bounds(j)
	rest := float64(max(0, gap)) - from
	if j == 0 {
		return float64(p[0]) * rest / width
	}

	// The last octave has no end: its hazard itself is kept.
	if j == paceOctaves-1 {
		return float64(p[j-1]) + float64(p[j])*rest
	}
	return float64(p[j-1]) + float64(p[j]-p[j-1])*rest/width
}

// gap returns after which gap the sum is reached.
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

// growth returns the share by which a batch of n is expected to grow between now and execAt, as far
// as growing is worth it.
func (p *Pace) growth(now, last, execAt Time, n int) float64 {
	if execAt <= now {
		return 0
	}
	return (p.sum(execAt.Sub(last)) - p.sum(now.Sub(last))) / float64(max(1, n))
}

// early returns when the growth to be expected until execAt is down to limit.
func (p *Pace) early(last, execAt Time, n int, limit float64) Time {
	// The sum grows with time, so that the moment is found by reading it backwards.
	left := p.sum(execAt.Sub(last)) - limit*float64(max(1, n))
	if left <= 0 {
		return last
	}
	return min(execAt, last.Add(p.gap(left)))
}

// worth weighs growth by what it saves when GPU time lacks: requests that come too late for a batch
// of t pay for a share of another's ℓ(0), so growth counts by the share of ℓ(t) that is not the
// requests' own; and it counts against the scatter of a batch's size, 1/√t. Below, large batches
// keep the busy fraction true to the load, and growth counts as it is. A model that gains next to
// nothing by batching may as well run at once, whatever the load.
func (m *model) worth(t int) float64 {
	share := 1 - float64(m.exec[t+1]-m.exec[t])*float64(t)/float64(m.exec[t])
	if m.single = share < worthMin; m.single {
		return worthMin
	}
	return 1 + (share*math.Sqrt(float64(t))-1)*scarcity(m.load)
}

const worthMin = 0.02

// scarcity says how much GPU time is what lacks at a load u: 0 to 1.
func scarcity(u float64) float64 { return max(0, min((u-scarce)/(full-scarce), 1)) }

const (
	scarce = 0.90
	full   = 0.95
)

// gaps counts a model's gaps between requests by octave: every fourth one, which tells as much.
type gaps [paceOctaves]uint32

// arrive notes a request that arrives now.
func (m *model) arrive(now Time) {
	// Every fourth gap tells as much and costs a quarter.
	if m.q.came()&3 == 0 {
		m.gaps[octave(now.Sub(m.last))]++
	}
	m.last = now
}

// burstiness returns which share of the gaps is shorter than the first octave, beyond that of Poisson arrivals: 0 for
// these, nearly 1 where most requests come in bursts.
func (g *gaps) burstiness(perNS float64) float64 {
	all := 0.0
	for _, n := range g {
		all += float64(n)
	}
	_, width := bounds(0)
	return max(0, float64(g[0])/max(gapsLeast, all)-(1-math.Exp(-perNS*width)))
}

// pace derives the hazards, gaps that ended in an octave over the time spent in it, times worth. Of
// a model without an estimated rate the next request is expected at once: it defers.
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
			width = 1 // of the last octave the hazard itself is kept
		}
		p[j] = float32(hazard * width)
		longer += n
	}

	for j := 1; j < paceOctaves-1; j++ {
		p[j] += p[j-1]
	}

	// Old gaps count half, so that the pace follows what changes.
	if longer > gapsMax {
		for j := range g {
			g[j] /= 2
		}
	}
	return p
}
