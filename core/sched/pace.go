package sched

import "math/bits"

// Pace tells how soon a model's next request is to be expected, by the time since its last one:
// the hazard of its gaps in arrivals per nanosecond, one per octave of the gap. For Poisson
// arrivals all are λ; for bursts they fall as the gap grows. POD, so that a Candidate carries it.
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

// at returns the hazard when the last request came at last.
func (p *Pace) at(now, last Time) float64 { return float64(p[octave(max(0, now.Sub(last)))]) }

// growth returns the share by which a batch of n is expected to grow between now and execAt.
func (p *Pace) growth(now, last, execAt Time, n int) float64 {
	return p.at(now, last) * float64(max(0, execAt.Sub(now))) / float64(max(1, n))
}

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

// pace derives the hazards: gaps that ended in an octave over the time spent in it. Of a model
// without an estimated rate the next request is expected at once: it defers.
func (g *gaps) pace(perNS float64) (p Pace) {
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
		p[j] = float32((n + gapsPrior*perNS*width) / (longer*width + n*width/2 + gapsPrior*width))
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
