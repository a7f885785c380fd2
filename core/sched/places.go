package sched

import "math"

// A service with several homes chooses among them ahead of time. What such services have queued is placed in a tentative
// schedule, the one whose head must start first before the others, and only what is to start now is offered to a
// Ranker. So a batch takes a lighter variant or another kind of GPU as soon as those before it leave too little of
// what it would rather have, not when its deadline forces it to: by then the variants that take long, on the kinds
// that are slow, are no longer to be had. What does not start now is placed anew when something has changed.

// places is the tentative schedule of a Partition.
type places struct {
	outlooks []Outlook // by sub-cluster
	free     []Outlook // by sub-cluster: the same with what has been placed so far
	queued   []int32   // places in models: those with several homes that may have something queued
	changed  []int32   // those of them that have changed since the latest schedule
	set      []int32   // scratch: those that are placed
	round    uint32    // of schedules, so that each service counts once in one
	looked   int       // services placed since queued was cleaned
	whole    bool      // all are to be placed
	stale    bool      // something has changed since the latest schedule
	due      Time      // when to look at all again
}

const (
	// placedMax is how many services with something queued are all placed anew whenever anything changes. Of more, those are that
	// have changed or are due, by what is free now: what a schedule costs does not grow with the number of services.
	placedMax = 32
	// growthShare is by which share the batch of a service that waits may grow before it is placed anew.
	growthShare = 8
	// waitPrice is what a second's wait costs, in units of accuracy: at the right prices several ways to answer are
	// equally good, and the one at hand is better.
	waitPrice = 0.1
	// execPrice is what a second of execution costs on GPUs that nobody else wants: of two ways that answer alike the one that
	// answers sooner is better.
	execPrice = 0.02
	// gainLeast is by which factor a request must get cheaper for a batch to wait for more.
	gainLeast = 1.02
	// placeAgain is after what time a home that gave a GPU which was of no use is asked again, and a schedule that could not be
	// made is tried again.
	placeAgain Duration = 1_000_000
)

// SetOutlook says when the next GPUs of a sub-cluster are free.
func (p *Partition) SetOutlook(o *Outlook) {
	s := p.places
	if s == nil || o.SubCluster >= SubClusterLimit {
		return
	}

	// Sub-clusters come to be known by their first outlook.
	for int(o.SubCluster) >= len(s.outlooks) {
		s.outlooks, s.free = append(s.outlooks, Outlook{}), append(s.free, Outlook{})
	}
	if known := &s.outlooks[o.SubCluster]; *known != *o {
		// Among many services each has a time at which it looks again, if any GPU is to be free at all.
		if len(s.queued) > 0 && (len(s.queued) <= placedMax || known.N == 0) {
			s.stale, s.whole = true, true
		}

		*known = *o
	}
}

// Spread says whether the Partition has services with several homes: their driver tells outlooks and calls Place.
func (p *Partition) Spread() bool { return p.places != nil }

// Waits says whether a service with several homes may have something queued, so that outlooks matter.
func (p *Partition) Waits() bool { return p.places != nil && len(p.places.queued) > 0 }

// Place decides where what services with several homes have queued is answered, if anything has changed. It is to be called
// after each call or burst of calls, with the newest outlooks.
func (p *Partition) Place(now Time) {
	s := p.places
	if s == nil || !s.stale {
		return
	}

	// A GPU that is on its way back to its Ranker is in no outlook: its next place would be taken for lost.
	if now = p.clock(now); len(p.out.Frees) > 0 {
		s.due = min(s.due, now.Add(placeAgain))
		return
	}
	p.placeQueues(now)
}

// refreshHomes is refresh for a service with several homes: it will be placed anew.
func (p *Partition) refreshHomes(m *model, at int32) {
	s, f := p.places, m.family
	if !f.listed {
		f.listed = true
		s.queued = append(s.queued, at)
	}
	if !f.changed {
		f.changed = true
		s.changed = append(s.changed, at)
	}

	// Any request may change where the batch is best: each is looked at until the service has a place.
	s.stale = true
	m.state, m.q.calm = waiting, 0
	m.timer = m.q.first() - Time(m.soonest) + 1
	p.timers.arm(at, m.timer)
}

// placeQueues makes the tentative schedule and offers what is to start now.
func (p *Partition) placeQueues(now Time) {
	s := p.places
	all := p.chooseQueued()
	s.stale, s.due = false, Never
	if len(s.set) == 0 {
		return
	}
	copy(s.free, s.outlooks)

	// A GPU that is free by the time a batch gets there counts as free.
	lead := p.o.Ctrl + p.o.Data
	soon := now.Add(lead)
	for s.anyFree(soon) {
		m := p.mostUrgent()
		if m == nil {
			break
		}
		p.placeNext(now, soon, m)
	}

	// Who has no place looks again when the next GPU is free.
	next := s.nextFree(soon) - Time(lead)
	for _, at := range s.set {
		m := &p.models[at]
		p.offerPlaces(now, m)
		p.growUnseen(now, m)

		if m.family.placed < m.q.len() {
			m.family.lookAt = min(m.family.lookAt, next)
		}
		if all {
			s.due = min(s.due, m.family.lookAt)
		} else if m.family.lookAt < m.timer {
			m.timer = m.family.lookAt
			p.timers.arm(at, m.timer)
		}
	}
}

// chooseQueued fills in the set of services to be placed. It returns whether these are all that have something queued.
func (p *Partition) chooseQueued() (all bool) {
	s := p.places
	s.round++
	if s.looked >= len(s.queued) {
		s.queued, s.looked = p.keepQueued(s.queued[:0], s.queued), 0
		s.round++
	}

	all = s.whole || len(s.queued) <= placedMax
	if s.whole = false; all {
		s.set = p.keepQueued(s.set[:0], s.queued)
	} else {
		s.set = p.keepQueued(s.set[:0], s.changed)
	}
	s.looked += len(s.set)

	for _, at := range s.changed {
		if f := p.models[at].family; f != nil {
			f.changed = false
		}
	}
	s.changed = s.changed[:0]
	return all
}

// keepQueued appends those of some services that have something queued to kept, without a place.
func (p *Partition) keepQueued(kept, some []int32) []int32 {
	for _, at := range some {
		m := &p.models[at]
		f := m.family

		if !m.live || f == nil || f.round == p.places.round {
			continue // it is gone, or another has its place in models
		}
		if m.q.len() == 0 || len(f.homes) == 1 {
			f.listed = false
			continue
		}

		// It is placed from nothing: what an earlier schedule said no longer holds.
		f.placed, f.pieces, f.lookAt, f.round = 0, 0, Never, p.places.round
		for k := range f.homes {
			f.homes[k].starts = 0
		}
		kept = append(kept, at)
	}

	return kept
}

// growUnseen lets requests join unlooked at while a large batch waits for more, until it has grown by a part.
func (p *Partition) growUnseen(now Time, m *model) {
	f := m.family
	if f.pieces != 1 || f.placed < m.q.len() || f.placed < growthShare || f.lookAt <= now {
		return
	}

	// The timer is set for the batch that has grown so far.
	grown := f.placed + f.placed/growthShare
	if ahead := m.q.first() - Time(f.way.lead[min(grown+1, int(f.way.max))]); ahead > now {
		f.lookAt = min(f.lookAt, ahead)
		p.calm(m, int32(grown))
	}
}

// anyFree says whether some GPU can start something now.
func (s *places) anyFree(soon Time) bool {
	for k := range s.free {
		if o := &s.free[k]; o.N > 0 && o.Free[0] <= soon {
			return true
		}
	}

	return false
}

// nextFree returns when the next GPU is free that is not by now.
func (s *places) nextFree(soon Time) Time {
	next := Never
	for k := range s.free {
		for _, at := range s.free[k].Free[:s.free[k].N] {
			if at > soon {
				next = min(next, at)
				break
			}
		}
	}

	return next
}

// mostUrgent returns the service whose next request that has no place must start first where it intends to be served; nil: all
// have places.
func (p *Partition) mostUrgent() (best *model) {
	first := Never
	for _, at := range p.places.set {
		m := &p.models[at]
		if m.family.placed >= m.q.len() {
			continue
		}
		if last := m.q.at(m.family.placed).Deadline - Time(m.exec[1]); last < first {
			best, first = m, last
		}
	}

	return best
}

// placeNext gives a service's next requests the best place that there is.
func (p *Partition) placeNext(now, soon Time, m *model) {
	f, s := m.family, p.places
	h, r, b := p.bestPlace(now, m)
	if r == nil {
		f.placed++ // no GPU is in time for it: it is dropped when its time has come
		return
	}

	// What is to start later keeps its GPU from those behind it, but is decided anew by then.
	o := &s.free[h.sub]
	free := o.Free[0]
	start := max(now, free)
	switch ripe := p.placeRipe(m, r, b); {
	case free > soon:
		f.lookAt = min(f.lookAt, free-Time(p.o.Ctrl+p.o.Data))
	case ripe > now:
		f.lookAt = min(f.lookAt, ripe)
		start = max(start, ripe)
	case h.starts == 0:
		h.starts, h.from = b, f.placed
	}
	f.placed += b
	f.pieces++
	f.way = &r.execution

	// The GPU is free again after the batch.
	copy(o.Free[:o.N-1], o.Free[1:o.N])
	o.N--
	o.addFree(start.Add(r.exec[b]))
}

// bestPlace returns where the requests that have no place yet are answered best: accuracy less the price of the GPU time
// and of the wait, per request.
func (p *Partition) bestPlace(now Time, m *model) (best *home, way *resident, size int) {
	f, most := m.family, math.Inf(-1)
	for k := range f.homes {
		h := &f.homes[k]
		if int(h.sub) >= len(p.places.free) {
			continue
		}
		if h.refused > now {
			f.lookAt = min(f.lookAt, h.refused)
			continue
		}

		// Without a GPU in sight there is no place, whatever the variants.
		o := &p.places.free[h.sub]
		if o.N == 0 {
			continue
		}
		if r, b, worth := p.bestWay(now, m, h, f.placed, o.Free[0]); r != nil && worth > most {
			best, way, size, most = h, r, b, worth
		}
	}

	return best, way, size
}

// bestWay returns the resident of a home that answers the requests from place first on best on a GPU that is free at a time, how
// many, and what an answer is worth.
func (p *Partition) bestWay(now Time, m *model, h *home, first int, freeAt Time) (best *resident, size int, most float64) {
	price, hurry := p.priceOf(h.sub), 0.0
	if price <= 2*leastPrice {
		hurry = execPrice
	}

	for i := range h.residents {
		r := &h.residents[i]
		b := p.fit(now, m, &r.execution, first, freeAt)
		if b == 0 {
			continue
		}

		// Rounded term by term, or processors that multiply and add in one step would decide otherwise.
		worth := r.accuracy - float64(price*float64(float64(r.exec[b])/float64(1e9*float64(b)))) -
			float64(waitPrice*float64(max(0, freeAt.Sub(now)))+hurry*float64(r.exec[b]))/1e9
		if best == nil || worth > most {
			best, size, most = r, b, worth
		}
	}

	return best, size, most
}

// placeRipe returns until when waiting for one request more is free and worth it, or the margin before (see hurry): 0 if the batch is as large as it can be, cannot
// use another, or is as cheap as planned.
func (p *Partition) placeRipe(m *model, r *resident, b int) Time {
	placed := m.family.placed
	if b == int(r.max) || placed+b < m.q.len() || float64(r.exec[b]) <= gainLeast*1e9*r.cost*float64(b) || m.load < p.o.Prompt {
		return 0
	}

	return m.q.at(placed).Deadline - Time(r.lead[b+1]+m.margin)
}

// offerPlaces asks the Rankers for GPUs that a service is to start batches on now, and takes back what it asked of others.
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

// formPlaced is form for a service with several homes.
func (p *Partition) formPlaced(now Time, m *model, h *home, g Grant) bool {
	p.places.stale = true
	asked := h.told > 0
	h.told, h.ripe = 0, false // its Ranker gave the candidate a GPU
	p.expirePlaced(now, m)
	if !asked || m.q.len() == 0 {
		return false
	}

	// The queue may have changed since the place was found.
	m.sample()
	from := h.from
	if from >= m.q.len() {
		from = 0
	}
	r, b, _ := p.bestWay(now, m, h, from, g.FreeAt)
	if b == 0 {
		// What this GPU is too late or too slow for is the other homes'.
		h.refused = now.Add(placeAgain)
		p.places.due = min(p.places.due, h.refused)
		return false
	}

	m.family.countServed(h, b)
	m.family.movePlaces(from, b)
	p.emit(now, m, &r.execution, g, from, b, 0)
	return true
}

// expirePlaced drops the heads that no home can serve in time.
func (p *Partition) expirePlaced(now Time, m *model) {
	n := m.q.len()

	// Places are counted from the head, which moves on.
	p.expire(now.Add(m.soonest), m)
	m.family.movePlaces(0, n-m.q.len())
}

// movePlaces notes that n requests from place first on have left the queue.
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

// withdrawAll takes it from all that have been asked.
func (p *Partition) withdrawAll(m *model) {
	for k := range m.family.homes {
		p.withdrawFrom(m, &m.family.homes[k])
	}
}

// offerTo is offer to one of several homes.
func (p *Partition) offerTo(m *model, h *home, size int, ripe bool, execAt Time) {
	m.seq++
	h.told, h.ripe = uint32(size), ripe

	// A home's part of the demand is by what it serves, at its own cost of a request.
	x := h.intention()

	demand := int64(float64(p.demand(m)) * m.family.share(h) * x.cost / m.family.homes[m.family.main].intention().cost)
	p.out.Candidates = append(p.out.Candidates, Candidate{
		Model: m.id, SubCluster: h.sub, Seq: m.seq, Size: uint32(size), Ripe: ripe, ExecAt: execAt,
		Rank: m.rankIn(&x.execution, min(size, int(x.max))), Last: m.last, Pace: m.pace, Demand: demand, Least: h.leastDemand(demand),
		Avoid: p.avoided(m),
	})
}

// reconsiderHomes acts on GPUs of a home that have all gone, or that came to one without.
func (p *Partition) reconsiderHomes(now Time, m *model, at int32, subCluster uint32) {
	if m.family.homeIn(subCluster) == nil {
		return
	}

	// Which home is the main one may have changed with the GPUs.
	m.rate.derive(m)
	p.settle(now, m, at)
}
