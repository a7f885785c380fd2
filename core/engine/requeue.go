package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
)

// requeueOrEnd queues a request again that still counts as queued, or ends it.
func (p *partition) requeueOrEnd(e *Engine, t *turn, r *sched.Request) {
	if e.frontend(r.Origin) == nil {
		p.endQueued(t, r, model.Canceled)
		return
	}

	// A request keeps its deadline in microseconds; the margin is taken again, since the expected lateness may have
	// changed.
	due := t.now - t.now%microsecond + sched.Time(left(r.Due, t.now))*microsecond
	r.Deadline = due - p.overrunOf(uint32(r.Model)).margin(due.Sub(t.now))
	if why := p.s.Enqueue(t.now, *r); why != model.ReasonNone {
		p.endQueued(t, r, why)
	}
}

// requeueFlight queues a flight's requests again.
func (p *partition) requeueFlight(e *Engine, t *turn, f *flight) {
	for k := range f.requests {
		p.requeueRequest(e, t, f, k)
	}
}

// requeueRequest queues request k of a flight again.
func (p *partition) requeueRequest(e *Engine, t *turn, f *flight, k int) {
	p.models[f.model].sent--
	r := f.requests[k]

	// The groups come first: they depend on flags that are cleared next.
	r.Avoid = p.groupsToAvoid(e, t.now, f, &r)
	r.Flags = sched.PastOf(r.Flags)

	// The window of a session that has ended is cleared: nobody waits for the requests of its batches.
	s := p.idWindow(r.Origin)
	if s == nil {
		p.refuseRequest(t, &r, model.Canceled) // its session is gone
		return
	}
	entry, tag := s.findEntry(uint64(r.ID))
	switch {
	case *entry != tag: // a later request has overwritten the tag: its answer stands
	case p.live == p.liveMax:
		p.refuseRequest(t, &r, sched.ReasonLost(r.Flags))
	default:
		p.live++
		p.requeueOrEnd(e, t, &r)
	}
}

// requeueUnanswered handles a request that its GPU did not and will not answer: others get it if core/sched gives it
// another try.
func (p *partition) requeueUnanswered(e *Engine, t *turn, f *flight, k int) {
	r := &f.requests[k]

	// The note precedes the queueing, because requeueRequest reads it.
	if r.Flags&sched.Unread != 0 {
		p.noteUnread(t.now, r.Origin, f.gpu.b.group)
	}
	if sched.MayTryAgain(r.Flags) {
		p.requeueRequest(e, t, f, k)
		return
	}
	// No backend answers it, and there will be no other try.
	p.models[f.model].sent--
	p.refuseRequest(t, r, sched.ReasonLost(r.Flags))
}
