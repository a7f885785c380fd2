package sched

// The services to place are a binary heap, which shares with type heap only the items. It changes only at its top and so
// needs no positions; through heap.down each request of ten families would take one per cent more instructions.

// orderSet makes a heap of the services that have requests without a place, the most urgent first, and returns whether
// there is one. A heap, because searching the most urgent of many services for each place would take many steps.
func (p *Partition) orderSet() bool {
	s := p.places
	for k, at := range s.set {
		if m := &p.models[at]; m.family.placed < m.q.len() {
			s.order = append(s.order, heapItem{s.startBy(m), uint32(k)})
		}
	}

	for i := (len(s.order) - 2) / 2; i >= 0; i-- {
		s.sinkUrgent(i)
	}
	return len(s.order) > 0
}

// mustStart returns when a service's first request without a place must start if it is served as intended.
func (m *model) mustStart() Time { return m.q.at(m.family.placed).Deadline - Time(m.exec[1]) }

// startBy returns when a service's next requests must start, in the order of the schedule.
func (s *places) startBy(m *model) Time {
	if s.byBatch {
		return m.mustStartBatch()
	}
	return m.mustStart()
}

// mustStartBatch is mustStart for the batch that the price prefers, as far as its requests are queued.
func (m *model) mustStartBatch() Time {
	f := m.family
	x := f.homes[f.main].intention()
	b := max(1, min(int(x.sized), m.q.len()-f.placed))
	return m.q.at(f.placed).Deadline - Time(x.exec[b])
}

// reorderFirst brings the most urgent service, which got a place, to its new position.
func (p *Partition) reorderFirst(m *model) {
	s := p.places
	if m.family.placed < m.q.len() {
		s.order[0].key = s.startBy(m)
	} else {
		last := len(s.order) - 1
		s.order[0] = s.order[last]
		s.order = s.order[:last]
	}

	s.sinkUrgent(0)
}

// sinkUrgent moves an item of the heap down to its position.
func (s *places) sinkUrgent(i int) {
	for {
		c := 2*i + 1
		if c >= len(s.order) {
			return
		}
		if c+1 < len(s.order) && s.order[c+1].before(s.order[c]) {
			c++
		}

		if !s.order[c].before(s.order[i]) {
			return
		}
		s.order[i], s.order[c] = s.order[c], s.order[i]
		i = c
	}
}
