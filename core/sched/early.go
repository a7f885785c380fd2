package sched

import vocabulary "downbeat.dev/core/model"

// A request may come before its input: a frontend that still prepares the input says how long that will take at least.
// Such a request is early. It joins its queue when a batch that is sent then will find the input, so that no candidate
// counts on it before. An early request counts towards its queue's limit and can be withdrawn. Queued requests cost no more
// because others are early.
//
// The next batch loses nothing by not knowing the early requests. It waits for more requests until its frontrun, and by
// definition one that joins after the frontrun does not fit (docs/decisions/0374).

// earlyMax bounds a model's early requests, and with them what CancelAll reads. Beyond it one gives way as in a full queue, so
// that whoever prepares inputs for an hour does not keep others out.
const earlyMax = 4096

// AdmitEarly accepts a request that may be in a batch sent at from or later, not before; ReasonNone means that it is queued.
// It ends at once if no batch of that time could meet its deadline.
func (p *Partition) AdmitEarly(now Time, r *Request, from Time) vocabulary.Reason {
	now = p.clock(now)
	m, at := p.find(r.Model)
	if m == nil || from <= now || r.Deadline <= now {
		return p.enqueue(now, r)
	}

	why := vocabulary.ReasonNone
	switch e := p.earlyOf[m.id]; {
	case p.hasNoGPUs(m):
		why = vocabulary.NoBackend
	case r.Deadline.Sub(from) < m.soonest:
		why = vocabulary.DeadlineCannotBeMet
	case e.len() >= earlyMax && !p.makeRoomEarly(m, r.Priority, r.Deadline), m.q.n >= p.room(m) && !p.makeRoom(m, r.Priority, r.Deadline):
		why = vocabulary.QueueFull
	}

	if why != vocabulary.ReasonNone {
		return p.refuse(why)
	}

	p.stats.Enqueued++
	p.addEarly(m, at, r, from)
	return vocabulary.ReasonNone
}

// addEarly adds an early request.
func (p *Partition) addEarly(m *model, at int32, r *Request, from Time) {
	if p.joins == nil {
		p.joins, p.earlyOf = newWheel(p.now), map[ModelID]*earlyQueue{}
	}
	e := p.earlyOf[m.id]
	if e == nil {
		e = &earlyQueue{model: at}
		p.earlyOf[m.id] = e
	}

	e.add(r, from)
	p.early++
	m.q.quiet = min(m.q.quiet, p.room(m))
	p.armJoin(e)
}

// armJoin sets the timer of a model's next early request.
func (p *Partition) armJoin(e *earlyQueue) {
	p.joins.grow(len(p.models))
	if e.len() == 0 {
		p.joins.off(e.model)
		return
	}
	p.joins.arm(e.model, e.heap[0].from)
}

// takeEarly removes an early request and returns it.
func (p *Partition) takeEarly(e *earlyQueue, x *earlyRequest) Request {
	r := e.remove(x)
	p.early--
	p.armJoin(e)
	return r
}

// room returns how many requests a model's queue may hold beside its early ones.
func (p *Partition) room(m *model) int32 {
	if p.early == 0 {
		return m.queueMax
	}
	return m.queueMax - int32(p.earlyOf[m.id].len())
}

// joinReady lets the early requests join their queues whose time has come. If they are more than searchMax, each model gets a
// part, and NextWake asks for the next call: one session may have 4,096 of each model that become ready at one moment.
func (p *Partition) joinReady(now Time) {
	p.due = p.joins.advance(now, p.due[:0])
	part := max(1, searchMax/max(1, len(p.due)))
	for _, at := range p.due {
		m := &p.models[at]
		e := p.earlyOf[m.id]
		for i := 0; i < part && e.len() > 0 && e.heap[0].from <= now; i++ {
			r := p.takeEarly(e, e.heap[0].earlyRequest)
			p.joinEarly(now, m, at, &r)
		}
	}
}

// joinEarly lets a request join its queue as if it arrived now, or drops it if it cannot be served any more.
func (p *Partition) joinEarly(now Time, m *model, at int32, r *Request) {
	m.arrive(now)
	if r.Deadline.Sub(now) < m.soonest {
		m.q.since-- // an arrival without a place in the queue
		why := vocabulary.DeadlineCannotBeMet
		if p.hasNoGPUs(m) {
			why = vocabulary.NoBackend
		}
		p.drop(r, why)
		return
	}

	*p.join(now, m, at, r.Deadline, r.Priority) = *r
	if r.Avoid != 0 {
		p.noteAvoider(m.id, r.Deadline)
	}
}

// Hasten lets an early request join its queue now, because its input is there. It returns false if there is no such
// request.
func (p *Partition) Hasten(now Time, id ModelID, r RequestID, origin uint32) bool {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil || p.early == 0 {
		return false
	}

	e := p.earlyOf[id]
	x := e.find(r, origin)
	if x == nil {
		return false
	}

	ready := p.takeEarly(e, x)
	p.joinEarly(now, m, at, &ready)
	return true
}

// cancelEarly is Cancel for an early request.
func (p *Partition) cancelEarly(m *model, r RequestID, origin uint32) bool {
	e := p.earlyOf[m.id]
	x := e.find(r, origin)
	if x == nil {
		return false
	}
	p.takeEarly(e, x)
	p.stats.Canceled++
	return true
}

// cancelAllEarly is CancelAll for early requests.
func (p *Partition) cancelAllEarly(m *model, origin uint32) {
	e := p.earlyOf[m.id]

	// Another request may fill a place that becomes free, so the place is looked at again.
	for i := e.len() - 1; i >= 0; {
		if i >= e.len() || e.heap[i].Origin != origin {
			i--
			continue
		}
		p.dropOneEarly(e, e.heap[i].earlyRequest, vocabulary.Canceled)
	}
}

// dropOneEarly drops an early request.
func (p *Partition) dropOneEarly(e *earlyQueue, x *earlyRequest, why vocabulary.Reason) {
	r := p.takeEarly(e, x)
	p.drop(&r, why)
}

// dropEarly drops early requests of a model until it has keep of them. Others than the first to join go.
func (p *Partition) dropEarly(m *model, keep int, why vocabulary.Reason) {
	for e := p.earlyOf[m.id]; e.len() > keep; {
		p.dropOneEarly(e, e.heap[e.len()-1].earlyRequest, why)
	}
}

// makeRoomEarly is makeRoom with an early request as the victim.
func (p *Partition) makeRoomEarly(m *model, pr Priority, deadline Time) bool {
	e := p.earlyOf[m.id]
	x := e.victim()
	if x == nil || x.Priority > pr || x.Priority == pr && x.Deadline <= deadline {
		return false
	}
	p.dropOneEarly(e, x, vocabulary.QueueFull)
	return true
}
