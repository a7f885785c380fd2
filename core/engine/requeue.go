package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
)

// again queues a request anew that is counted as queued, or ends it.
func (p *partition) again(e *Engine, t *turn, r *sched.Request) {
	if e.frontend(r.Origin) == nil {
		p.end(t, r, model.Canceled)
		return
	}

	// A request keeps its end in microseconds; the margin is taken anew, since batches may run later by now.
	due := t.now - t.now%microsecond + sched.Time(left(r.Due, t.now))*microsecond
	r.Deadline = due - p.overrunOf(uint32(r.Model)).margin(due.Sub(t.now))
	if why := p.s.Enqueue(t.now, *r); why != model.ReasonNone {
		p.end(t, r, why)
	}
}

// unload queues a flight's requests again.
func (p *partition) unload(e *Engine, t *turn, f *flight) {
	for k := range f.requests {
		p.reload(e, t, f, k)
	}
}

// reload queues a flight's request k again.
func (p *partition) reload(e *Engine, t *turn, f *flight, k int) {
	p.models[f.model].sent--
	r := f.requests[k]

	// The groups come first: they depend on flags that are cleared next.
	r.Avoid = p.groupsToAvoid(e, t.now, f, &r)
	r.Flags = sched.PastOf(r.Flags)

	// A session's end clears its seats, so that what its batches held has nobody to answer.
	s := p.seats(r.Origin)
	if s == nil {
		p.refuseRequest(t, &r, model.Canceled) // its session is gone
		return
	}
	place, mark := s.seat(uint64(r.ID))
	switch {
	case *place != mark: // a later request sat down there: its answer stands
	case p.live == p.liveMax:
		p.refuseRequest(t, &r, sched.ReasonLost(r.Flags))
	default:
		p.live++
		p.again(e, t, &r)
	}
}

// giveBack takes a request that its GPU did not answer and never will: others get it, where core/sched gives it another try.
func (p *partition) giveBack(e *Engine, t *turn, f *flight, k int) {
	r := &f.requests[k]

	// The note comes before the request is queued: reload already reads it.
	if r.Flags&sched.Unread != 0 {
		p.noteUnread(t.now, r.Origin, f.gpu.b.group)
	}
	if sched.MayTryAgain(r.Flags) {
		p.reload(e, t, f, k)
		return
	}
	// No backend answers it, nor will another try.
	p.models[f.model].sent--
	p.refuseRequest(t, r, sched.ReasonLost(r.Flags))
}
