package sched

// placeQueues makes the tentative schedule and offers the batches that start now.
func (p *Partition) placeQueues(now Time) {
	s := p.places
	few := p.chooseQueued()
	s.stale, s.due = false, Never
	if len(s.set) == 0 {
		return
	}

	// The schedule uses a copy of the outlooks: its places are tentative and take no GPU.
	copy(s.free, s.outlooks)

	// A GPU that is free by the time a batch arrives there counts as free.
	lead := p.o.Ctrl + p.o.Data
	soon := now.Add(lead)
	s.order, s.tally = s.order[:0], tally{}
	s.compares = few && p.comparesOrders()
	for s.anyFree(soon) && p.placeFirst(now, soon) {
	}
	if s.compares {
		p.chooseOrder(now, soon)
	}

	// Services without a place are checked again when the next GPU becomes free.
	next := s.nextFree(soon) - Time(lead)
	for _, at := range s.set {
		m := &p.models[at]
		p.offerPlaces(now, m)

		if m.family.placed < m.q.len() {
			m.family.lookAt = min(m.family.lookAt, next)
		}
		p.allowUnchecked(now, m, few)
		if few {
			s.due = min(s.due, m.family.lookAt)
		} else if m.family.lookAt < m.timer {
			m.timer = m.family.lookAt
			p.timers.arm(at, m.timer)
		}
	}
}

// chooseQueued fills in the set of services to place. It returns whether they are few enough to be all placed together,
// after any change and when places.due has come; otherwise each has a timer of its own.
func (p *Partition) chooseQueued() (few bool) {
	s := p.places
	s.round++

	// Clean the list only now and then, so that many schedules share the cost.
	if s.looked >= len(s.queued) && (len(s.queued) <= placedMax || s.looked >= cleanAfter*len(s.queued)) {
		s.queued, s.looked = p.keepQueued(s.queued[:0], s.queued), 0
		s.round++
	}

	few = len(s.queued) <= placedMax
	if few || s.whole || s.few { // those that were few have no timers yet
		s.set = p.keepQueued(s.set[:0], s.queued)
	} else {
		s.set = p.keepQueued(s.set[:0], s.changed)
	}
	s.whole, s.few = false, few
	s.looked += len(s.set)

	for _, at := range s.changed {
		if f := p.models[at].family; f != nil {
			f.changed = false
		}
	}
	s.changed = s.changed[:0]
	return few
}

// keepQueued appends the services of some that have queued requests to kept, and clears their places.
func (p *Partition) keepQueued(kept, some []int32) []int32 {
	for _, at := range some {
		m := &p.models[at]
		f := m.family

		if !m.live || f == nil || f.round == p.places.round {
			continue // removed, or another model has its index
		}
		if m.q.len() == 0 || len(f.homes) == 1 {
			f.listed = false
			continue
		}

		// Place it from scratch: an earlier schedule no longer applies.
		f.round = p.places.round
		f.clearPlaces()
		kept = append(kept, at)
	}

	return kept
}

// clearPlaces takes a service's places back.
func (f *family) clearPlaces() {
	f.placed, f.pieces, f.lookAt = 0, 0, Never
	for k := range f.homes {
		f.homes[k].starts = 0
	}
}

// placeFirst gives the most urgent service its next place. It returns false if no service has requests without one.
func (p *Partition) placeFirst(now, soon Time) bool {
	s := p.places
	if len(s.order) == 0 && !p.orderSet() {
		return false
	}

	m := &p.models[s.set[s.order[0].id]]
	p.placeNext(now, soon, m)
	p.reorderFirst(m)
	return true
}

// placeNext gives a service's next requests the best available place.
func (p *Partition) placeNext(now, soon Time, m *model) {
	f, s := m.family, p.places
	at := p.bestPlace(now, m)
	h, r, b := at.home, at.way, at.size
	if r == nil {
		f.placed = p.nextHead(now, m) // the requests before it are dropped when their time has come
		return
	}

	// A batch that starts later keeps a GPU from services after it, but is decided anew by then.
	o := &s.free[h.sub]
	free, ripe := o.Free[0], p.placeRipe(m, r, b)
	start := max(now, free, ripe)
	switch {
	case free > soon:
		s.delayed++
		f.lookAt = min(f.lookAt, free-Time(p.o.Ctrl+p.o.Data))
	case ripe > now:
		f.lookAt = min(f.lookAt, ripe)
	case h.starts == 0:
		h.starts, h.from = b, f.placed
		s.starting++
	}
	if s.compares {
		s.tallyPlace(&at, start.Sub(now), m.slo)
	}
	f.placed += b
	f.pieces++
	f.way = &r.execution

	// A batch that waits for more requests leaves the GPUs that are free earlier to others. Its own is free again after it.
	o.takeFree(ripe)
	o.addFree(start.Add(r.exec[b]))
}

// anyFree reports whether some GPU can start something now.
func (s *places) anyFree(soon Time) bool {
	for k := range s.free {
		if o := &s.free[k]; o.N > 0 && o.Free[0] <= soon {
			return true
		}
	}

	return false
}

// nextFree returns when the next GPU becomes free that is not free by now.
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
