package sched

import vocabulary "downbeat.dev/core/model"

// Enqueue takes a request in; ReasonNone means that it is queued. Any other reason is its
// outcome: it is not reported again as a Drop.
func (p *Partition) Enqueue(now Time, r Request) vocabulary.Reason {
	return p.enqueue(now, &r)
}

// enqueue is Enqueue without a copy of the request. Enqueue is inlined, so that a caller's copy is the only one.
func (p *Partition) enqueue(now Time, r *Request) vocabulary.Reason {
	e, why := p.Admit(now, r.Model, r.Deadline, r.Priority)
	if e == nil {
		return why
	}
	*e = *r

	// An avoider is rare: without one nothing of it is looked at.
	if r.Avoid != 0 {
		p.noteAvoider(r.Model, r.Deadline)
	}
	return why
}

// Admit is Enqueue for a driver in a hurry: it returns where the request stands in its queue, for
// the driver to write the fields that are not arguments. Those hold anything before; the place is
// valid until the next call. nil: the request is refused.
func (p *Partition) Admit(now Time, id ModelID, deadline Time, pr Priority) (*Request, vocabulary.Reason) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return nil, p.refuse(vocabulary.UnknownModel)
	}

	q := &m.q
	if q.n >= q.calm || deadline < q.last || deadline.Sub(now) < m.soonest || pr > 0 || q.full() {
		return p.admit(now, m, at, deadline, pr)
	}
	// Most requests: one more behind those queued, which changes nothing else.
	m.arrive(now)
	p.stats.Enqueued++
	r := q.at(int(q.n))
	q.n++
	q.last = deadline
	r.Deadline, r.Model, r.Priority, r.Avoid = deadline, id, 0, 0
	return r, vocabulary.ReasonNone
}

// admit is the rest of Admit.
func (p *Partition) admit(now Time, m *model, at int32, deadline Time, pr Priority) (*Request, vocabulary.Reason) {
	// While the queue is calm a request joins unlooked at: nothing that is decided here could have changed.
	look := m.q.n >= m.q.calm
	if look && p.deserted(m) {
		return nil, p.refuse(vocabulary.NoBackend)
	}

	m.arrive(now)

	// A refused request counts as an arrival, although it has no place in the queue.
	if deadline < now || deadline.Sub(now) < m.soonest {
		m.q.since--
		if deadline <= now {
			return nil, p.refuse(vocabulary.DeadlinePast)
		}
		return nil, p.refuse(vocabulary.DeadlineCannotBeMet)
	}

	// Only a full queue makes its requests compete for room.
	if look && m.q.n >= m.queueMax && !p.makeRoom(m, pr, deadline) {
		m.q.since--
		return nil, p.refuse(vocabulary.QueueFull)
	}

	p.stats.Enqueued++
	if m.q.full() {
		m.q.room(&p.out.memory)
	}
	r, place := m.q.open(deadline)
	r.Model, r.Priority, r.Avoid = m.id, pr, 0
	m.ranks.add(pr)

	// A request that joins before the place where a sweep is moves that place on.
	if place < int(m.ranks.swept) {
		m.ranks.swept++
	}

	// An arrival changes the candidate when it is the head, or when the queue was to be looked at.
	if place == 0 {
		m.timer = Never // an earlier head: the timer is to be set anew
		p.refresh(now, m, at)
	} else if look && (m.state != ripe || m.crowded || p.avoids(now, m)) {
		p.refresh(now, m, at)
	}
	return r, vocabulary.ReasonNone
}

// makeRoom gives up a queued request for one that matters more, or would be served sooner.
func (p *Partition) makeRoom(m *model, pr Priority, deadline Time) bool {
	i := m.q.victim(pr, deadline, &m.ranks)
	if i < 0 {
		return false
	}
	p.drop(m.q.at(i), vocabulary.QueueFull)
	m.q.remove(i, &m.ranks)
	return true
}

func (p *Partition) refuse(why vocabulary.Reason) vocabulary.Reason {
	p.stats.Dropped[why]++
	return why
}

func (p *Partition) drop(r *Request, why vocabulary.Reason) {
	p.stats.Dropped[why]++
	p.out.Drops = append(p.out.Drops, Drop{Request: *r, Reason: why})
}
