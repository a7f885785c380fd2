package swarm

import (
	"slices"

	"downbeat.dev/core/invariants"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// key is the life of one request id in one session. Maybe also counts requests lost in two batches: the second loss
// drops the request only if the first copy is still queued. A duplicated Submit can put one id into two batches.
type key struct {
	invariants.Life
	lost  bool // it came back from a lost backend
	again bool // it is in the Submit that the engine is taking, and was queued before
	ended bool // an outcome ended it since the engine began to take its latest Submit
}

func (s *frontSession) key(id uint64) *key {
	for uint64(len(s.keys)) < id {
		s.keys = append(s.keys, key{})
	}

	return &s.keys[id-1]
}

// entryIndex returns the index of an id's entry in the engine's id window.
func (s *frontSession) entryIndex(id uint64) uint64 { return id & uint64(s.f.c.windowSize()-1) }

// isOverwritten reports whether another id may have overwritten this id's entry. Then a Cancel need not find the id, and
// the id need not come back from a lost backend.
func (s *frontSession) isOverwritten(id uint64) bool { return s.idWindow[s.entryIndex(id)] != id }

// beforeSubmit runs before the engine takes a Submit.
func (k *checker) beforeSubmit(s *frontSession, m []wire.Submit) {
	now := k.c.now
	k.c.addMark("submit", int64(s.h.Number()), int64(m[0].ID), int64(len(m)))
	for i := range m {
		x, overwritten := s.key(m[i].ID), s.isOverwritten(m[i].ID)

		// An accepted id overwrites the entry of an earlier id.
		s.idWindow[s.entryIndex(m[i].ID)], x.ended = m[i].ID, false
		by := int64(deadlineOf(now, &m[i]))

		switch {
		case x.Queued > 0 && overwritten: // the engine no longer knows it
			x.Suspect(by)
			s.sch.book.maybe++
			continue
		case x.Queued > 0:
			x.again = true
			continue
		case x.Deadline != 0 && s.sch.engine.Queued(m[i].Model)+len(m) > searchMost: // it ended, and the engine does not search a long queue for it
			x.Suspect(by)
			s.sch.book.maybe++
			continue
		}

		if x.Maybe > 0 {
			s.sch.book.maybe++
		}
		x.lost, x.again = false, false
		x.Queue(by)
	}
}

// deadlineOf returns a Submit's deadline as the engine computes it.
func deadlineOf(now Time, m *wire.Submit) Time {
	return now.Add(Duration(max(0, min(m.Budget, sched.SLOLimit))))
}

// afterSubmit runs after the engine has taken a Submit.
func (k *checker) afterSubmit(s *frontSession, m []wire.Submit) {
	for i := range m {
		switch x := s.key(m[i].ID); {
		case x.again && x.Queued > 0:
			s.sch.book.duplicates++
		case x.again: // it ended meanwhile, before or after the engine looked at its duplicate
			x.Suspect(int64(deadlineOf(k.c.now, &m[i])))
			s.sch.book.maybe++
		}
		s.key(m[i].ID).again = false

		// A refused request writes no entry, but a request that is accepted and dropped at once does. Here the two look
		// alike.
		if entry := s.entryIndex(m[i].ID); s.key(m[i].ID).ended && s.idWindow[entry] == m[i].ID {
			delete(s.idWindow, entry)
		}
		k.checkOverdue(s, m[i].ID, 2*k.c.o.PollLate) // twice PollLate: a late wake-up may lead to a second one
	}

	// Check only every 32nd burst, since this bound loops over all models.
	if k.bursts%32 == 0 {
		k.checkBounds(s)
	}
	k.bursts++
}

// checkBounds reports more queued requests than the engine may hold.
func (k *checker) checkBounds(s *frontSession) {
	o, all := &k.c.o, 0
	bound := func(id uint32, name string) {
		queued := s.sch.engine.Queued(id)
		if o.QueueMax > 0 && queued > o.QueueMax {
			k.fail("C10: %d requests of %s are queued, at most %d", queued, name, o.QueueMax)
		}
		all += queued
	}

	for m, id := range s.ids {
		if id != 0 {
			bound(id-1, k.c.models[m].name)
		}
	}

	for i := range s.families {
		f := &s.families[i]
		for _, x := range f.Floors {
			bound(x.ID, f.Name)
		}
	}

	if most := o.LiveMax * o.Partitions; all > most {
		k.fail("C10: %d requests are queued, at most %d", all, most)
	}
}

// checkOverdue reports a request that is still queued after its deadline plus a grace. A scheduler that was paused checks
// its queues when it resumes.
func (k *checker) checkOverdue(s *frontSession, id uint64, grace Duration) {
	if at := k.c.now.Add(-grace); s.sch.resumedAt < at {
		k.Overdue(&s.key(id).Life, uint64(s.h.Number()), id, int64(at))
	}
}

// afterCancel runs after the engine has taken a Cancel. The engine searches a queue longer than searchMost in pieces,
// and a request that it finds too late may run.
func (k *checker) afterCancel(s *frontSession, m *wire.Cancel) {
	if s.key(m.ID).Queued == 0 || s.isOverwritten(m.ID) {
		return
	}
	if s.sch.engine.Queued(m.Model) <= searchMost {
		k.fail("C1: request %d of frontend %d is queued after its Cancel", m.ID, s.h.Number())
	}
}

// searchMost is the largest number of a model's requests that one Cancel searches.
const searchMost = 256

// noteOutcome runs when the engine sends an outcome.
func (k *checker) noteOutcome(s *frontSession, m *wire.Outcome) {
	k.c.addMark("outcome", int64(s.f.index), int64(m.ID), int64(m.Reason))
	if m.Reason == 0 || m.Reason >= model.ReasonCount || m.ID == 0 || s.closed {
		k.fail("C1: outcome %+v of frontend %d (closed: %v)", *m, s.f.index, s.closed)
		return
	}

	k.c.report.Told[m.Reason]++
	x := s.key(m.ID)
	x.ended = true
	if x.Queued == 0 && x.again { // a request of higher priority in the same Submit took its place, and its duplicate found none
		x.again = false
		return
	}

	if !x.lost {
		k.checkOverdue(s, m.ID, k.c.o.PollLate)
	}
	k.End(&x.Life, uint64(s.h.Number()), m.ID, "ended as "+m.Reason.String())
}

// afterFrontendClose runs after a session has ended: no further message may name it. The engine removes its requests from
// a long queue in pieces; they may enter a batch until the engine has been polled until idle once.
func (k *checker) afterFrontendClose(s *frontSession, long bool) {
	s.closed = true
	if long {
		s.swept = s.sch.polls + 1
	}

	for i := range s.keys {
		if x := &s.keys[i]; long && x.Queued > 0 {
			x.Suspect(x.Deadline)
		}
		s.keys[i].Queued = 0
	}
}

// hasLongQueue reports whether some queue of the session's scheduler is too long to be searched at once.
func (k *checker) hasLongQueue(s *frontSession) bool {
	return slices.ContainsFunc(s.ids, func(id uint32) bool { return id != 0 && s.sch.engine.Queued(id-1) > searchMost })
}

// checkCallEnd runs at every end of a call.
func (k *checker) checkCallEnd(f *front, id uint64, why model.Reason, local bool) {
	// Outputs of a GPU that is slower than its kind may be late until the deadlines account for it.
	x := &f.calls[id-1]
	if k.c.o.mayDelay() || x.slow {
		return
	}

	// A call whose deadline passes before the frontend knows a scheduler must end by itself.
	if late := k.c.now > x.deadline; why == model.ReasonNone && late || local && x.submitted && why != model.Canceled {
		k.fail("C8: call %d of frontend %d ended %v at %d (by itself: %v), its deadline is %d", id, f.index, why, k.c.now, local, x.deadline)
	}
}
