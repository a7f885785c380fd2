package sched

// placeQueues makes the tentative schedule and offers what is to start now.
func (p *Partition) placeQueues(now Time) {
	s := p.places
	all := p.chooseQueued()
	s.stale, s.due = false, Never
	if len(s.set) == 0 {
		return
	}

	// The schedule fills a copy of the outlooks: what it places is tentative, and no GPU is taken by it.
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

		if m.family.placed < m.q.len() {
			m.family.lookAt = min(m.family.lookAt, next)
		}
		p.growUnseen(now, m, all)
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

	// The list is cleaned only now and then, so that its cost is shared by many schedules.
	if s.looked >= len(s.queued) && (len(s.queued) <= placedMax || s.looked >= cleanAfter*len(s.queued)) {
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

// mostUrgent returns the service whose first request without a place must start before all others', each where it intends to be
// served; nil: all requests have places.
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
	at := p.bestPlace(now, m)
	h, r, b := at.home, at.way, at.size
	if r == nil {
		f.placed = p.nextHead(now, m) // those before are dropped when their time has come
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
