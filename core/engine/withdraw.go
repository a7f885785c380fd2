package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// purgeStep is the number of requests that purge examines per hold of the lock.
const purgeStep = 4096

// purgeRequests ends the queued requests of a departed frontend, for the models from the given one on. It returns where to
// continue; 0 at the end.
func (p *partition) purgeRequests(t *turn, front uint32, from int) int {
	s := p.idWindow(front)
	if s == nil {
		return 0
	}

	// The lock is released after some steps: a session with a hundred thousand requests must not stop the others.
	looked := 0
	for m := from; m < len(p.models) && p.live > 0; m++ {
		if looked > purgeStep {
			return m
		}
		p.s.CancelAll(t.now, sched.ModelID(m), front)
		looked += 16 + min(p.s.Queued(sched.ModelID(m)), purgeStep/16)
	}

	// The window goes last: a purge in several steps needs it each time.
	*s = idWindow{}
	return 0
}

// cancelRequest withdraws a frontend's request and ends it. If the request is in a batch, the backend answers it.
func (p *partition) cancelRequest(t *turn, front uint32, m *wire.Cancel) {
	s := p.idWindow(front)
	if s == nil {
		return
	}
	r := sched.Request{ID: sched.RequestID(m.ID), Origin: front, Model: sched.ModelID(m.Model)}

	// The tag avoids most searches. It may belong to another id, so the queue decides.
	if entry, tag := s.findEntry(m.ID); *entry == tag && p.s.Cancel(t.now, r.Model, r.ID, front) {
		p.endQueued(t, &r, model.Canceled)
	}
}
