package sched

import vocabulary "downbeat.dev/core/model"

// Enqueue accepts a request; ReasonNone means that it is queued. Any other reason is its outcome, which is not
// reported again as a Drop.
func (p *Partition) Enqueue(now Time, r Request) vocabulary.Reason {
	return p.enqueue(now, &r)
}

// enqueue is Enqueue without a copy of the request. Enqueue is inlined, so the caller's copy is the only one.
func (p *Partition) enqueue(now Time, r *Request) vocabulary.Reason {
	e, why := p.Admit(now, r.Model, r.Deadline, r.Priority)
	if e == nil {
		return why
	}
	*e = *r

	// Requests that avoid GPUs are rare: without one this costs a single comparison.
	if r.Avoid != 0 {
		p.noteAvoider(r.Model, r.Deadline)
	}
	return why
}

// Admit is Enqueue for a driver that avoids the copy: it returns the request's place in its queue, where the driver
// writes the fields that are not arguments. Those hold arbitrary values before; the pointer is valid until the next
// call. nil: the request is refused.
func (p *Partition) Admit(now Time, id ModelID, deadline Time, pr Priority) (*Request, vocabulary.Reason) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return nil, p.refuse(vocabulary.UnknownModel)
	}

	if pr > 0 || !m.joinsLast(now, deadline) {
		return p.admit(now, m, at, deadline, pr)
	}
	// Most requests join behind those queued and change nothing else.
	m.arrive(now)
	p.stats.Enqueued++
	return m.appendRequest(id, deadline), vocabulary.ReasonNone
}

// admit handles the cases that Admit does not.
func (p *Partition) admit(now Time, m *model, at int32, deadline Time, pr Priority) (*Request, vocabulary.Reason) {
	// A request that joins a quiet queue needs no check: it could not change any decision made here.
	look := m.q.n >= m.q.quiet
	if look && p.hasNoGPUs(m) {
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

	// Only in a full queue do requests compete for room.
	if look && m.q.n >= p.room(m) && !p.makeRoom(m, pr, deadline) {
		m.q.since--
		return nil, p.refuse(vocabulary.QueueFull)
	}

	p.stats.Enqueued++
	return p.join(now, m, at, deadline, pr), vocabulary.ReasonNone
}

// join puts a request into its queue and brings the candidate up to date. The caller writes the fields of the request
// that are not arguments.
func (p *Partition) join(now Time, m *model, at int32, deadline Time, pr Priority) *Request {
	look := m.q.n >= m.q.quiet
	if m.q.full() {
		m.q.makeRoom(&p.out.memory)
	}
	r, place := m.q.insert(deadline)
	r.Model, r.Priority, r.Avoid = m.id, pr, 0
	m.priorities.add(pr)

	// A request that joins before a sweep's position moves that position on.
	if place < int(m.priorities.swept) {
		m.priorities.swept++
	}

	// An arrival changes the candidate if it is the new head, or if the queue was due for a check.
	if place == 0 {
		m.timer = Never // an earlier head: set the timer anew
		m.forgetSkipped()
		p.refreshCandidate(now, m, at)
	} else if look && (m.state != ripe || m.crowded || p.avoids(now, m)) {
		p.refreshCandidate(now, m, at)
	}
	return r
}

// makeRoom drops a queued request in favor of one that matters more or has an earlier deadline.
func (p *Partition) makeRoom(m *model, pr Priority, deadline Time) bool {
	i := -1
	if m.q.n > 0 {
		i = m.q.victim(pr, deadline, &m.priorities)
	}
	if i < 0 {
		return p.early > 0 && p.makeRoomEarly(m, pr, deadline)
	}
	p.drop(m.q.at(i), vocabulary.QueueFull)
	m.q.remove(i, &m.priorities)
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
