package sched

import (
	"math"
	"math/bits"
)

// Pace tells what waiting for a model's next request is worth per nanosecond, by the time since its
// last one: the hazard of its gaps, one per octave of the gap, times what a request more in a batch
// saves (see worth). For Poisson arrivals all hazards are λ; for bursts they fall as the gap grows.
// POD, so that a Candidate carries it.
type Pace [paceOctaves]float32

const (
	paceOctaves = 12
	paceShift   = 17      // the first octave ends at 131 µs, the last begins at 134 ms
	gapsMax     = 1 << 13 // counted gaps are halved beyond this, so that old ones fade
	gapsPrior   = 2       // how many gaps the rate alone counts for in each octave
)

func octave(gap Duration) int {
	return min(paceOctaves-1, bits.Len64(uint64(gap)>>paceShift))
}

// at returns the worth when the last request came at last.
func (p *Pace) at(now, last Time) float64 { return float64(p[octave(max(0, now.Sub(last)))]) }

// growth returns the share by which a batch of n is expected to grow between now and execAt, as far
// as growing is worth it.
func (p *Pace) growth(now, last, execAt Time, n int) float64 {
	return p.at(now, last) * float64(max(0, execAt.Sub(now))) / float64(max(1, n))
}

// early returns when the growth to be expected until execAt is down to limit.
func (p *Pace) early(now, last, execAt Time, n int, limit float64) Time {
	return execAt - Time(min(1<<62, limit*float64(max(1, n))/p.at(now, last)))
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
type gaps struct {
	count [paceOctaves]uint32
	sum   uint32
}

// arrive notes a request that arrives now.
func (m *model) arrive(now Time) {
	if (m.arrivals()-m.seen)&3 == 0 {
		m.gaps.count[octave(now.Sub(m.last))]++
		m.gaps.sum++
	}
	m.last = now
}

// arrivals counts the requests that came so far, modulo 2³²: those popped, those queued and those
// gone otherwise. The count itself costs a request nothing.
func (m *model) arrivals() uint32 { return m.q.head + uint32(m.q.n) + m.tally.gone }

// pace derives the hazards, gaps that ended in an octave over the time spent in it, times worth. Of
// a model without an estimated rate the next request is expected at once: it defers.
func (g *gaps) pace(perNS, worth float64) (p Pace) {
	if perNS == 0 {
		for j := range p {
			p[j] = 1
		}
		return p
	}
	longer := 0.0
	for j := paceOctaves - 1; j >= 0; j-- {
		width := float64(int64(1) << paceShift)
		if j > 0 {
			width = float64(int64(1) << (paceShift + j - 1))
		}
		n := float64(g.count[j])
		p[j] = float32(worth * (n + gapsPrior*perNS*width) / (longer*width + n*width/2 + gapsPrior*width))
		longer += n
	}
	if g.sum > gapsMax {
		g.sum = 0
		for j := range g.count {
			g.count[j] /= 2
			g.sum += g.count[j]
		}
	}
	return p
}
