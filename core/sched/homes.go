package sched

import "math"

// refreshHomes is refreshCandidate for a service with several homes: the next schedule places the service anew.
func (p *Partition) refreshHomes(now Time, m *model, at int32) {
	s, f := p.places, m.family
	if !f.listed {
		f.listed = true
		s.queued = append(s.queued, at)
	}
	if len(s.queued) > placedMax && p.waitUnplaced(now, m, at) {
		return
	}
	if !f.changed {
		f.changed = true
		s.changed = append(s.changed, at)
	}

	// Each further request is checked until the service has a place, because it may change which place is best.
	s.stale = true
	m.state, m.q.quiet = waiting, 0
	m.timer = m.q.first() - Time(m.soonest) + 1
	p.timers.arm(at, m.timer)
}

// offerPlaces asks the Rankers for the GPUs on which a service is to start batches now, and withdraws its candidates
// from others.
func (p *Partition) offerPlaces(now Time, m *model) {
	for k := range m.family.homes {
		h := &m.family.homes[k]
		switch {
		case h.starts == 0:
			p.withdrawFrom(m, h)
		case !h.ripe || h.told != uint32(h.starts) || p.avoids(now, m):
			p.offerTo(m, h, h.starts, true, now)
		}
	}
}

// formPlaced is formPlain for a service with several homes.
func (p *Partition) formPlaced(now Time, m *model, h *home, g Grant) bool {
	p.places.stale = true
	p.places.noteLoad(&g)
	asked := h.told > 0
	h.told, h.ripe = 0, false // the grant consumed the home's candidate
	p.expirePlaced(now, m)
	if !asked || m.q.len() == 0 {
		return false
	}

	// The queue may have changed since the place was found.
	m.sampleBudget()
	from := h.from
	if from >= m.q.len() {
		from = 0
	}
	r, b, _ := p.bestWay(now, m, h, from, g.FreeAt, math.Inf(-1), false)
	for b == 0 && from < m.q.len() {
		if from, _ = p.headBehind(now, m, h, from, g.FreeAt); from < m.q.len() {
			r, b, _ = p.bestWay(now, m, h, from, g.FreeAt, math.Inf(-1), false)
		}
	}
	if b == 0 {
		// Requests for which this GPU is too late or too slow go to the other homes.
		h.refused = now.Add(placeAgain)
		p.places.due = min(p.places.due, h.refused)
		return false
	}

	m.family.countServed(h, b)
	m.family.movePlaces(from, b)
	p.emitBatch(now, m, &r.execution, g, from, b, 0)
	return true
}

// expirePlaced drops the heads that no home can serve in time.
func (p *Partition) expirePlaced(now Time, m *model) {
	n := m.q.len()

	// Places count from the head, which moves on.
	p.dropExpired(now.Add(m.soonest), m)
	m.family.movePlaces(0, n-m.q.len())
}

// movePlaces records that n requests, from place first on, have left the queue.
func (f *family) movePlaces(first, n int) {
	for k := range f.homes {
		if h := &f.homes[k]; h.from > first {
			h.from = max(first, h.from-n)
		}
	}
}

// withdrawFrom takes a model's candidate from a home's Ranker.
func (p *Partition) withdrawFrom(m *model, h *home) {
	if h.told > 0 {
		p.offerTo(m, h, 0, false, 0)
	}
}

// withdrawAll takes a model's candidate from all Rankers that were asked.
func (p *Partition) withdrawAll(m *model) {
	for k := range m.family.homes {
		p.withdrawFrom(m, &m.family.homes[k])
	}
}

// offerTo is offerCandidate for one of several homes.
func (p *Partition) offerTo(m *model, h *home, size int, ripe bool, execAt Time) {
	m.seq++
	h.told, h.ripe = uint32(size), ripe
	m.family.asked = true

	// A home's part of the demand is its share of the requests, at its own cost of a request.
	x := h.intention()

	demand := int64(float64(p.demand(m)) * m.family.share(h) * x.cost / m.family.homes[m.family.main].intention().cost)
	p.out.Candidates = append(p.out.Candidates, Candidate{
		Model: m.id, SubCluster: h.sub, Seq: m.seq, Size: uint32(size), Ripe: ripe, ExecAt: execAt,
		Rank: m.rankIn(&x.execution, min(size, int(x.max))), Last: m.last, Pace: m.pace, Demand: demand, Least: h.leastDemand(demand),
		Avoid: p.avoidedGroups(m),
	})
}

// reconsiderHomes handles the loss of all GPUs of a home, and the first GPUs of a home that had none.
func (p *Partition) reconsiderHomes(now Time, m *model, at int32, subCluster uint32) {
	if m.family.homeIn(subCluster) == nil {
		return
	}

	// The GPUs may have changed which home is the main one.
	m.rate.derive(m)
	p.settleCandidate(now, m, at)
}
