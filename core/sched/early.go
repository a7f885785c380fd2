package sched

import (
	"slices"
	"sort"

	vocabulary "downbeat.dev/core/model"
)

// A request may come before its input: a frontend that still prepares the input says how long that will take at least.
// Such a request is early. It joins its queue when a batch that is sent then will find the input, so that no candidate
// counts on it before. An early request counts towards its queue's limit and can be withdrawn. Queued requests cost no more
// because others are early.
//
// The next batch loses nothing by not knowing the early requests. It waits for more requests until its frontrun, and by
// definition one that joins after the frontrun does not fit (docs/decisions/0374).

// earlyMax bounds a model's early requests, so that a call may search all of them. Beyond it the one that would join last
// ends with QueueFull: whoever prepares inputs for an hour does not keep others out.
const earlyMax = 4096

// earlyKept is the room that a model without early requests keeps for the next ones.
const earlyKept = 256

// earlyList holds a model's early requests in order of the time at which they join, equal times in order of arrival.
type earlyList []earlyRequest

type earlyRequest struct {
	Request
	from Time
}

// AdmitEarly is Admit for a request that may be in a batch sent at from or later, not before. It ends at once if no batch
// of that time could meet its deadline.
func (p *Partition) AdmitEarly(now Time, id ModelID, deadline Time, pr Priority, from Time) (*Request, vocabulary.Reason) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil || from <= now || deadline <= now {
		return p.Admit(now, id, deadline, pr)
	}

	why := vocabulary.ReasonNone
	switch count := p.Queued(id) - m.q.len(); {
	case p.hasNoGPUs(m):
		why = vocabulary.NoBackend
	case deadline.Sub(from) < m.soonest:
		why = vocabulary.DeadlineCannotBeMet
	case count >= earlyMax && !p.dropLastEarly(m, at, pr, from), m.q.n >= p.room(m) && !p.makeRoom(m, pr, deadline):
		why = vocabulary.QueueFull
	}

	if why != vocabulary.ReasonNone {
		return nil, p.refuse(why)
	}

	p.stats.Enqueued++
	return p.addEarly(m, at, Request{Model: id, Deadline: deadline, Priority: pr}, from), vocabulary.ReasonNone
}

// addEarly adds an early request.
func (p *Partition) addEarly(m *model, at int32, r Request, from Time) *Request {
	if p.joins == nil {
		p.joins, p.earlyOf = newWheel(p.now), map[ModelID]*earlyList{}
	}
	e := p.earlyOf[m.id]
	if e == nil {
		e = &earlyList{}
		p.earlyOf[m.id] = e
	}

	// Most hooks of a model take about equally long, so most requests go to the end.
	i := sort.Search(len(*e), func(k int) bool { return (*e)[k].from > from })
	*e = slices.Insert(*e, i, earlyRequest{r, from})
	p.early++
	m.q.quiet = min(m.q.quiet, p.room(m))
	p.armJoin(at, *e)
	return &(*e)[i].Request
}

// armJoin sets the timer of a model's next early request.
func (p *Partition) armJoin(at int32, e earlyList) {
	p.joins.grow(len(p.models))
	if len(e) == 0 {
		p.joins.off(at)
		return
	}
	p.joins.arm(at, e[0].from)
}

// listEarly returns a model's early requests.
func (p *Partition) listEarly(m *model) *earlyList {
	if e := p.earlyOf[m.id]; e != nil {
		return e
	}
	return &earlyList{}
}

// room returns how many requests a model's queue may hold beside its early ones.
func (p *Partition) room(m *model) int32 {
	if p.early == 0 {
		return m.queueMax
	}
	return m.queueMax - int32(len(*p.listEarly(m)))
}

// joinReady lets the early requests join their queues whose time has come.
func (p *Partition) joinReady(now Time) {
	p.due = p.joins.advance(now, p.due[:0])
	for _, at := range p.due {
		m := &p.models[at]
		e := p.listEarly(m)
		n := sort.Search(len(*e), func(k int) bool { return (*e)[k].from > now })

		// They leave the list before they join, because the queue's limit counts each request once.
		ready := slices.Clone((*e)[:n])
		p.removeEarly(m, at, 0, n)
		for i := range ready {
			p.joinEarly(now, m, at, &ready[i].Request)
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

// removeEarly removes a model's early requests from place i up to place to.
func (p *Partition) removeEarly(m *model, at int32, i, to int) {
	e := p.listEarly(m)
	*e = slices.Delete(*e, i, to)
	e.release()
	p.early -= to - i
	p.armJoin(at, *e)
}

// release gives back the memory of a list that was long and is empty.
func (e *earlyList) release() {
	if len(*e) == 0 && cap(*e) > earlyKept {
		*e = nil
	}
}

// findEarly returns the place of an early request; -1: it is none.
func (p *Partition) findEarly(m *model, r RequestID, origin uint32) int {
	return slices.IndexFunc(*p.listEarly(m), func(x earlyRequest) bool { return x.ID == r && x.Origin == origin })
}

// Hasten lets an early request join its queue now, because its input is there. It returns false if there is no such
// request.
func (p *Partition) Hasten(now Time, id ModelID, r RequestID, origin uint32) bool {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil || p.early == 0 {
		return false
	}

	i := p.findEarly(m, r, origin)
	if i < 0 {
		return false
	}

	x := (*p.listEarly(m))[i].Request
	p.removeEarly(m, at, i, i+1)
	p.joinEarly(now, m, at, &x)
	return true
}

// cancelEarly is Cancel for an early request.
func (p *Partition) cancelEarly(m *model, at int32, r RequestID, origin uint32) bool {
	i := p.findEarly(m, r, origin)
	if i < 0 {
		return false
	}
	p.removeEarly(m, at, i, i+1)
	p.stats.Canceled++
	return true
}

// cancelAllEarly is CancelAll for early requests.
func (p *Partition) cancelAllEarly(m *model, at int32, origin uint32) {
	e := p.listEarly(m)
	before := len(*e)
	*e = slices.DeleteFunc(*e, func(x earlyRequest) bool {
		if x.Origin == origin {
			p.drop(&x.Request, vocabulary.Canceled)
		}
		return x.Origin == origin
	})
	p.early -= before - len(*e)
	e.release()
	p.armJoin(at, *e)
}

// dropEarly drops a model's early requests except the first ones.
func (p *Partition) dropEarly(m *model, keep int, why vocabulary.Reason) {
	_, at := p.find(m.id)
	for n := len(*p.listEarly(m)); n > keep; n-- {
		p.drop(&(*p.listEarly(m))[n-1].Request, why)
		p.removeEarly(m, at, n-1, n)
	}
}

// dropLastEarly drops the early request that would join last, in favor of one that joins before it and matters as much. It
// searches nothing, as a session may send any number of early requests.
func (p *Partition) dropLastEarly(m *model, at int32, pr Priority, from Time) bool {
	e := *p.listEarly(m)
	last := len(e) - 1
	if e[last].from <= from || e[last].Priority > pr {
		return false
	}
	p.drop(&e[last].Request, vocabulary.QueueFull)
	p.removeEarly(m, at, last, last+1)
	return true
}

// makeRoomEarly is makeRoom with an early request as the victim: the least important one, and of these the one with the
// latest deadline.
func (p *Partition) makeRoomEarly(m *model, pr Priority, deadline Time) bool {
	_, at := p.find(m.id)
	e := *p.listEarly(m)
	worst := -1

	// They are in order of joining, not of deadlines.
	for i := range e {
		x := &e[i]
		if x.Priority > pr || x.Priority == pr && x.Deadline <= deadline {
			continue
		}
		if worst < 0 || x.Priority < e[worst].Priority || x.Priority == e[worst].Priority && x.Deadline > e[worst].Deadline {
			worst = i
		}
	}

	if worst < 0 {
		return false
	}
	p.drop(&e[worst].Request, vocabulary.QueueFull)
	p.removeEarly(m, at, worst, worst+1)
	return true
}
