package engine

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// purgeStep is how many requests purge looks at with the lock held.
const purgeStep = 4096

// purge ends the queued requests of a frontend that is gone, for the models from the given one on;
// it returns where to go on, 0 at the end.
func (p *partition) purge(t *turn, front uint32, from int) int {
	s := p.seats(front)
	if s == nil {
		return 0
	}

	// The lock is given back after some steps: a session of a hundred thousand requests must not stop the others.
	looked := 0
	for m := from; m < len(p.models) && p.live > 0; m++ {
		if looked > purgeStep {
			return m
		}
		p.s.CancelAll(t.now, sched.ModelID(m), front)
		looked += 16 + min(p.s.Queued(sched.ModelID(m)), purgeStep/16)
	}

	// The seats go last: a purge in several steps must find them each time.
	*s = seats{}
	return 0
}

// cancel withdraws a frontend's request and ends it; one in a batch is answered by its backend.
func (p *partition) cancel(t *turn, front uint32, m *wire.Cancel) {
	s := p.seats(front)
	if s == nil {
		return
	}
	r := sched.Request{ID: sched.RequestID(m.ID), Origin: front, Model: sched.ModelID(m.Model)}

	// The mark spares most of the searches; it may be another id's, so that the queue has the last word.
	if place, mark := s.seat(m.ID); *place == mark && p.s.Cancel(t.now, r.Model, r.ID, front) {
		p.end(t, &r, model.Canceled)
	}
}
