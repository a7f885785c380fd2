package sched

// A request that some GPUs could not serve is retried on others. The driver names the set of GPUs that it avoids. The
// decisions here only ensure that no batch on such a GPU takes the request, and that a model whose requests all avoid
// a GPU is not granted it.
//
// None of this costs anything while no such request may be queued: see avoids.

// Groups is a set of GPU groups. The driver gives each GPU a group, because GPUs of one host can reach the same
// memory. Two groups may share a bit, which makes a request avoid more GPUs than necessary.
type Groups uint16

// GroupsMax is the number of groups with a bit of their own.
const GroupsMax = 16

// GroupOf returns the set of one group.
func GroupOf(n uint32) Groups { return 1 << (n % GroupsMax) }

// SetGroup sets a GPU's group. Without it, the GPU has no group, and no request avoids it.
func (r *Ranker) SetGroup(id GPUID, g Groups) {
	if x := r.gpu(id); x != nil {
		x.group = g
	}
}

// avoidance describes a model's requests that avoid GPUs.
type avoidance struct {
	until    Time   // the latest of their deadlines
	declined Groups // groups of GPUs returned unused because these requests avoid them and no other was due
	at       Time   // time of declined: those GPUs are not requested again before the next time
}

// noteAvoider records that a request which avoids GPUs is queued. Inlined, it would give enqueue a stack frame for
// the map.
//
//go:noinline
func (p *Partition) noteAvoider(id ModelID, deadline Time) {
	if p.avoiding == nil {
		p.avoiding = map[ModelID]avoidance{}
	}
	a := p.avoiding[id]
	a.until = max(a.until, deadline)
	p.avoiding[id] = a
}

// avoids reports whether a request that avoids GPUs may be queued: the latest deadline of such a request is in the
// future.
func (p *Partition) avoids(now Time, m *model) bool {
	return len(p.avoiding) > 0 && p.stillAvoids(now, m)
}

// stillAvoids is avoids for the case that some model has such requests.
func (p *Partition) stillAvoids(now Time, m *model) bool {
	a, some := p.avoiding[m.id]
	if some && a.until < now {
		delete(p.avoiding, m.id)
	}
	return some && a.until >= now
}

// avoidedGroups returns the groups that every queued request avoids: a GPU of any other group takes at least one request.
// It checks searchMax requests; in a longer queue some requests may be retried where they failed.
func (p *Partition) avoidedGroups(m *model) Groups {
	if len(p.avoiding) == 0 {
		return 0
	}
	return p.groupsAllAvoid(m)
}

// groupsAllAvoid is avoidedGroups for the case that some model has such requests.
func (p *Partition) groupsAllAvoid(m *model) Groups {
	n := m.q.len()
	if !p.stillAvoids(p.now, m) || n == 0 {
		return 0
	}

	// A long queue is not read to its end, and counts as avoiding nothing.
	all := m.q.at(0).Avoid
	for i := 1; all != 0 && i < n; i++ {
		if all &= m.q.at(i).Avoid; i == searchMax {
			all = 0
		}
	}
	if a := p.avoiding[m.id]; a.at == p.now {
		all |= a.declined
	}
	return all
}

// setAside removes the requests that avoid a granted GPU from a queue, so that its batch is formed of the others.
func (p *Partition) setAside(m *model, g Groups) {
	m.q.filter(0, min(m.q.len(), searchMax), &m.priorities, func(r *Request) bool {
		if r.Avoid&g == 0 {
			return false
		}
		p.aside = append(p.aside, *r)
		return true
	})
}

// putBack requeues the requests that setAside removed, and records whether the GPU stayed unused.
func (p *Partition) putBack(now Time, m *model, g Groups, used bool) {
	for i := range p.aside {
		if m.q.full() {
			m.q.makeRoom(&p.out.memory)
		}
		r, place := m.q.insert(p.aside[i].Deadline)
		*r = p.aside[i]
		m.q.since++ // not an arrival
		m.priorities.add(r.Priority)
		if place < int(m.priorities.swept) {
			m.priorities.swept++
		}
	}
	p.aside = p.aside[:0]

	// Avoid a declined GPU until the next time; otherwise the same GPU would be granted again at once.
	if a := p.avoiding[m.id]; !used {
		if a.at != now {
			a.at, a.declined = now, 0
		}
		a.declined |= g
		p.avoiding[m.id] = a
	}
}

// otherGPU returns the first idle GPU outside these groups; false if there is none among the first searchMax.
func (r *Ranker) otherGPU(avoid Groups) (GPUID, bool) {
	looked := 0
	for id := range r.idle.all {
		if r.gpus[id].group&avoid == 0 {
			return GPUID(id), true
		}
		if looked++; looked == searchMax {
			break
		}
	}
	return 0, false
}

// postponeTop takes the first candidate, which that avoids every idle GPU out of a heap, so that others go first.
func (r *Ranker) postponeTop(h *heap) {
	r.postponed = append(r.postponed, h.top())
	h.remove(r.rivals, h.top().id)
}

// restorePostponed puts postponed candidates back into a heap.
func (r *Ranker) restorePostponed(h *heap) {
	for _, x := range r.postponed {
		h.set(r.rivals, x.id, x.key)
	}
	r.postponed = r.postponed[:0]
}
