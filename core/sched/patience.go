package sched

import "math"

// GPUs that all run long batches keep a service with a short SLO waiting past it (decision 0389). N GPUs whose batches
// take at most T, and began at different times, become free every T/N in the mean. So batches of at most N times the SLO
// free a GPU once per SLO, whatever else runs there. They are limited to that only after the service has lost requests:
// before, long batches did it no harm.

// impatient is the service with the shortest SLO that has lost requests lately in a sub-cluster.
type impatient struct {
	slo  Duration
	lost Time // when it last lost requests
}

// lossSpan is how long a service counts as one that loses requests, after each loss.
const lossSpan Duration = 1_000_000_000

// noteLoss records that a service has lost requests in the homes that it uses.
func (p *Partition) noteLoss(m *model) {
	if p.places == nil || m.family == nil {
		return
	}
	for k := range m.family.homes {
		if h := &m.family.homes[k]; h.inUse {
			p.places.noteImpatient(p.now, h.sub, m.slo)
		}
	}
}

// noteImpatient records that a service with this SLO has lost requests in a sub-cluster.
func (s *places) noteImpatient(now Time, sub uint32, slo Duration) {
	for int(sub) >= len(s.impatient) {
		s.impatient = append(s.impatient, impatient{slo: SLOLimit})
	}
	if x := &s.impatient[sub]; slo <= x.slo || now.Sub(x.lost) > lossSpan {
		*x = impatient{slo, now}
	}
}

// longestBatch returns how long a service's next batch may take in a home whose next GPUs become free as o tells.
func (p *Partition) longestBatch(now Time, m *model, h *home, o *Outlook) Duration {
	// A service with one variant has no lighter one to give way with.
	if len(h.residents) == 1 || int(h.sub) >= len(p.places.impatient) {
		return math.MaxInt64
	}

	x := &p.places.impatient[h.sub]
	if now.Sub(x.lost) > lossSpan {
		return math.MaxInt64
	}

	// A service that no batch answers so quickly would not be served at all.
	n := p.gpusOf(h.sub)
	most := Duration(n) * x.slo
	if m.soonest > most {
		return math.MaxInt64
	}

	// Arrivals vary by chance with the root, so that while more GPUs than the root of N are free, another long batch
	// leaves enough of them. An outlook shows no more than OutlookMax GPUs.
	kept := min(int(math.Sqrt(float64(n))), OutlookMax-1)
	if kept < o.N && o.Free[kept] <= now.Add(p.o.Ctrl+p.o.Data) {
		return math.MaxInt64
	}
	return most
}
