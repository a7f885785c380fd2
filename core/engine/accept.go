package engine

import (
	"unsafe"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// requestGroup is a part of a burst: requests of one partition.
type requestGroup struct {
	n        int
	requests [sched.PrefetchMost]groupedRequest
}

// groupedRequest is a request with its model and its two moments: when it is due, and when its batch is planned to end.
type groupedRequest struct {
	*wire.Submit
	model    sched.FoundModel
	due, end sched.Time
}

// fillGroup makes a group of the first requests of m that belong to the partition, and returns the others. mu is held.
func (p *partition) fillGroup(e *Engine, g *requestGroup, a *sched.Arrivals, now sched.Time, m []wire.Submit) (rest []wire.Submit) {
	all := len(e.parts) == 1
	homes, late := p.homesOf(0), p.overrunOf(0)
	g.n = 0
	for len(m) > 0 && g.n < len(g.requests) {
		x := &m[0]
		m = m[1:]
		if !all && e.split.of(x.Model) != p.number {
			continue
		}

		// Batches may end late, so the scheduler plans for an earlier deadline. Most models have the same homes as the one
		// before.
		if at := p.homesOf(x.Model); at != homes {
			homes, late = at, p.overrunOf(x.Model)
		}
		budget := sched.Duration(min(x.Budget, sched.SLOLimit))
		due := now + sched.Time(budget)
		g.requests[g.n] = groupedRequest{x, a.Find(sched.ModelID(x.Model)), due, due - late.margin(budget)}
		g.n++
	}

	if p.s.Far() {
		g.prefetchQueues()
	}
	return m
}

// prefetchQueues begins to load the memory that the group's requests need. A read would keep the processor waiting.
func (g *requestGroup) prefetchQueues() {
	var words [2 * sched.PrefetchMost]unsafe.Pointer
	for i := range g.n {
		gaps, next := g.requests[i].model.PrefetchLines()
		words[2*i], words[2*i+1] = unsafe.Pointer(gaps), unsafe.Pointer(next)
	}
	prefetch(words[:2*g.n])
}

// acceptGroup accepts the requests of a group. mu is held.
func (p *partition) acceptGroup(t *turn, s *idWindow, a *sched.Arrivals, g *requestGroup) {
	for i := range g.requests[:g.n] {
		m := &g.requests[i]

		// Most requests join a queue and change nothing else. This loop calls nothing for them.
		entry, tag := s.findEntry(m.ID)
		if *entry != tag && p.live < p.liveMax && m.ReadyIn == 0 && m.Priority == 0 && a.JoinsLast(m.model, m.end) {
			a.NoteArrival(m.model)
			fillRequest(m.model.Append(sched.ModelID(m.Model), m.end), m.Submit, s.number, m.due)
			*entry = tag
			p.live++
			continue
		}

		if why := p.acceptRequest(t.now, s, m); why != model.ReasonNone && why != duplicate {
			t.outcomes = append(t.outcomes, outcome{s.number, wire.Outcome{ID: m.ID, Reason: why}})
		}
	}
}

// fillRequest writes the fields of a queued request that are the engine's.
func fillRequest(r *sched.Request, m *wire.Submit, front uint32, due sched.Time) {
	r.ID, r.Origin, r.Flags, r.Due = sched.RequestID(m.ID), front, 0, dueAt(due)
	r.Input = m.Input
}

// acceptRequest queues one request, or returns the reason for refusing it.
func (p *partition) acceptRequest(now sched.Time, s *idWindow, m *groupedRequest) model.Reason {
	// An id that is queued already is the same request sent twice: the first one's answer stands.
	entry, tag := s.findEntry(m.ID)
	if *entry == tag && p.s.Holds(sched.ModelID(m.Model), sched.RequestID(m.ID), s.number) {
		p.duplicates++

		// Without ReadyIn it tells of an early request that its input is there.
		if m.ReadyIn == 0 {
			p.s.Hasten(now, sched.ModelID(m.Model), sched.RequestID(m.ID), s.number)
		}
		return duplicate
	}

	// The number of queued requests bounds the memory, so requests beyond it are refused (I5).
	if p.live == p.liveMax {
		p.countOutcome(m.Model, model.QueueFull)
		return model.QueueFull
	}

	if why := p.queueRequest(now, s.number, m); why != model.ReasonNone {
		// The scheduler refuses the request before it is queued, so no drop will name the rule.
		if why == model.DeadlineCannotBeMet {
			p.models[m.Model].countDrop(ruleArrivedLate)
		}
		p.countOutcome(m.Model, why)
		return why
	}

	// Set the tag only now: a refused request may be sent again with its id.
	*entry = tag
	p.live++
	return model.ReasonNone
}

// queueRequest queues a request, or returns the reason for refusing it.
func (p *partition) queueRequest(now sched.Time, front uint32, m *groupedRequest) model.Reason {
	if m.ReadyIn != 0 {
		return p.queueEarly(now, front, m)
	}
	r, why := p.s.Admit(now, sched.ModelID(m.Model), m.end, sched.Priority(m.Priority))
	if r != nil {
		fillRequest(r, m.Submit, front, m.due)
	}
	return why
}

// queueEarly sets a request aside until its input is there, or returns the reason for refusing it.
func (p *partition) queueEarly(now sched.Time, front uint32, m *groupedRequest) model.Reason {
	if m.ReadyIn < 0 { // no time at which it could be read
		return model.InputUnavailable
	}

	// The order reaches its backend a trip later, so it may leave that much before the input is there. The time that
	// the Submit itself took is not known, and delays the request.
	from := now.Add(sched.Duration(min(m.ReadyIn, sched.SLOLimit)) - p.leastTrip)
	r := sched.Request{Model: sched.ModelID(m.Model), Deadline: m.end, Priority: sched.Priority(m.Priority)}
	fillRequest(&r, m.Submit, front, m.due)
	return p.s.AdmitEarly(now, &r, from)
}

// duplicate is accept's result for an id that is queued already.
const duplicate = model.ReasonCount
