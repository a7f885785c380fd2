package sched

import "math"

// Two rules keep services with several homes from collapsing together when GPU time gets short (decision 0230).
//
// Batches keep up. A batch that the head's deadline keeps small takes more GPU time for each request, so the requests
// behind it get staler, and their batches smaller still. So the schedule leaves a head behind that allows no batch
// which keeps up with the load, as the window of a service with one home does (see pickBatch).
//
// GPUs are reserved for the services that the plan gives them to. If a home serves requests that other homes could
// serve in a fraction of the GPU time, it pushes its own services to homes that suit them as little, until all
// services are where they cost most. Telephone networks with alternative routes have the same two states, and the
// same cure: some lines are kept free for direct calls (Gibbens, Hunt and Kelly, Bistability in communication
// networks, 1990).

// homeLoad is the demand per GPU of a sub-cluster as of its latest grant: with the intended variants, and the least
// possible.
type homeLoad struct{ intended, least float64 }

const (
	// intendedPace is the share of the load that batches must keep up with if a lighter variant exists, at most
	// paceMost of their own best efficiency; otherwise the lighter variant is used.
	intendedPace, paceMost = 0.8, 0.67
	// gainsLittle is the factor by which a request must get cheaper in batches of the target size for its variant to
	// be refused for a small batch: if all batches together can cost no more than that factor, the expensive state
	// does not arise (decision 0309).
	gainsLittle = 2
	// regretMost is how much worse, in units of accuracy, an answer in a home that the plan does not use may be.
	regretMost = 0.1
	// paidLeast is the least cost of an answer's GPU time, in units of accuracy, at which the price reflects others' loss.
	paidLeast = 0.002
)

// noteLoad records the load of a grant's sub-cluster.
func (s *places) noteLoad(g *Grant) {
	for int(g.SubCluster) >= len(s.loads) {
		s.loads = append(s.loads, homeLoad{})
	}
	s.loads[g.SubCluster] = homeLoad{g.Load, g.Least}
}

// keepsUp reports whether a batch of b of a home's i-th resident, from place first on, is efficient enough for the
// home's load. It need not be if it takes all queued requests, or if its head has a priority that must not be left
// behind.
func (p *Partition) keepsUp(m *model, h *home, i, first, b int) bool {
	if b >= m.q.len()-first || int(h.sub) >= len(p.places.loads) {
		return true
	}

	x, load := &h.residents[i].execution, p.places.loads[h.sub]
	pace := min(paceMost, intendedPace*load.intended)
	switch {
	case i == h.cheapest:
		pace = load.least
	case float64(x.exec[1])*float64(x.target) < gainsLittle*float64(x.exec[x.target]):
		return true
	}
	return x.enough(b, pace) || m.q.passable(first, first+1, &m.priorities) == first
}

// mayTake reports whether the service may use a place, or must leave it to the services that the plan gives such
// GPUs.
func (p *Partition) mayTake(now Time, f *family, at *place, o *Outlook) bool {
	h := at.home
	if h.inUse {
		return true
	}

	// A high price already includes what the answer takes from others. The price of idle GPUs, or of the room on them, does
	// not.
	if p.priceOf(h.sub)*at.way.cost > paidLeast && f.homes[f.main].worth-at.worth <= regretMost {
		return true
	}

	// The demand of the others until their next batch ends varies with the square root of the number of GPUs. Keep at
	// most as many GPUs as an outlook lists.
	kept := min(int(math.Sqrt(float64(p.gpus[h.sub]))/2), OutlookMax-1)
	kept -= o.Spare
	return kept < 0 || kept < o.N && o.Free[kept] <= now.Add(p.o.Ctrl+p.o.Data)
}

// nextHead returns the place of the next request that allows a larger batch in some home than the first unplaced one,
// which has found no place.
func (p *Partition) nextHead(now Time, m *model) int {
	f := m.family
	next, left := m.q.len(), false
	for k := range f.homes {
		h := &f.homes[k]
		if int(h.sub) >= len(p.places.free) || p.places.free[h.sub].N == 0 || h.refused > now {
			continue
		}
		behind, possible := p.headBehind(now, m, h, f.placed, p.places.free[h.sub].Free[0])
		next, left = min(next, behind), left || possible
	}

	if left {
		f.left.note(now, &m.q, f.placed, next)
	}
	return next
}

// leftBehind is the range of deadlines of requests that were passed over although a batch of them was possible: it
// would not have kept up. It names the rule that dropped them, and decides nothing.
type leftBehind struct{ first, last Time }

// note records that the requests from place first up to place next were passed over now.
func (l *leftBehind) note(now Time, q *queue, first, next int) {
	from := q.at(first).Deadline

	if l.last >= now {
		from = min(from, l.first) // the earlier ones have not ended yet
	}
	l.first, l.last = from, max(l.last, q.at(next-1).Deadline)
}

// holds reports whether a request with this deadline was passed over.
func (l *leftBehind) holds(deadline Time) bool { return l.first <= deadline && deadline <= l.last }

// headBehind returns the place of the first request after place first that allows a larger batch on a GPU of a home,
// and whether the request at first allows any batch.
func (p *Partition) headBehind(now Time, m *model, h *home, first int, freeAt Time) (next int, possible bool) {
	next = m.q.len()
	for _, i := range [...]int{0, h.cheapest} {
		x := &h.residents[i].execution
		n := p.largestBatch(now, m, x, first, freeAt)
		possible = possible || n > 0
		if n >= int(x.max) {
			next = first + 1
			break
		}
		next = min(next, p.firstAllowing(now, m, x, first+1, n+1, freeAt))
	}
	return next, possible
}
