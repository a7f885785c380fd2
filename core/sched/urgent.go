package sched

// urgent is a service that is being placed, and when its first request without a place must start if it is served as
// intended.
type urgent struct {
	start Time
	place int32 // in places.set
}

// before orders services by the start, and equal ones by their place.
func (a urgent) before(b urgent) bool {
	return a.start < b.start || a.start == b.start && a.place < b.place
}

// orderSet makes a heap of the services to place, the most urgent first, and returns whether there is one. A schedule of
// many services would take as many steps for each place if it searched the most urgent.
func (p *Partition) orderSet() bool {
	s := p.places
	for k, at := range s.set {
		if m := &p.models[at]; m.family.placed < m.q.len() {
			s.order = append(s.order, urgent{m.mustStart(), int32(k)})
		}
	}

	for i := (len(s.order) - 2) / 2; i >= 0; i-- {
		s.sink(i)
	}
	return len(s.order) > 0
}

// mustStart returns when a service's first request without a place must start if it is served as intended.
func (m *model) mustStart() Time { return m.q.at(m.family.placed).Deadline - Time(m.exec[1]) }

// reorderFirst brings the most urgent service, which got a place, to its new position.
func (p *Partition) reorderFirst(m *model) {
	s := p.places
	if m.family.placed < m.q.len() {
		s.order[0].start = m.mustStart()
	} else {
		last := len(s.order) - 1
		s.order[0] = s.order[last]
		s.order = s.order[:last]
	}

	s.sink(0)
}

// sink moves an entry of the heap down to its position.
func (s *places) sink(i int) {
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
