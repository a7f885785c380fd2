package swarm

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// sparedMost is how long a request waits for another scheduler when its own has no backend for it; resubmitsMax is
// how often it is submitted again for that reason. Both are as in package frontend (docs/decisions/0265).
const (
	sparedMost   = Duration(1e9)
	resubmitsMax = 4
)

// submitAgain submits all unanswered calls with budget left to the scheduler that the frontend obeys now.
func (f *front) submitAgain() { f.submitOnce(func(*call) bool { return true }) }

// submitSpared submits only the spared calls, since their model may be ready again.
func (f *front) submitSpared() { f.submitOnce(func(x *call) bool { return x.sparedSince != 0 }) }

// submitOnce submits the selected waiting calls that the scheduler serves. A spared call also needs a ready backend.
func (f *front) submitOnce(which func(*call) bool) {
	s := f.obeyedSession()
	if s == nil {
		return
	}

	var again []wire.Submit
	for i := range f.calls {
		x := &f.calls[i]
		if _, served := s.namedService(x.model, x.asks); !served || !x.live || x.deadline <= f.c.now || !which(x) {
			continue
		}
		if x.sparedSince != 0 && !s.isReady(x.model, x.asks) {
			continue
		}

		x.sparedSince = 0
		x.resubmits++
		again = append(again, f.newSubmit(s, uint64(i+1)))
	}

	if len(again) > 0 {
		f.submit(s, again)
	}
}

// endByOutcome ends a call with its scheduler's outcome, or spares it.
func (f *front) endByOutcome(id uint64, why model.Reason) {
	if f.keepsUnread(id, why) {
		return
	}
	if x := f.waitingCall(id); x != nil && f.keepsWaiting(x, why) {
		f.spareCall(id)
		return
	}
	f.endCall(id, why, false)
}

// keepsWaiting reports whether the frontend keeps a call that would end with this reason: another scheduler may serve
// it. A frontend of the previous version keeps none.
func (f *front) keepsWaiting(x *call, why model.Reason) bool {
	unserved := why == model.NoBackend || why == model.BackendLost
	return unserved && !f.old && len(f.c.schedulers) > 1 && x.resubmits < resubmitsMax
}

// spareCall keeps a call until another scheduler leads or its model is ready again, for at most sparedMost.
func (f *front) spareCall(id uint64) {
	c, x := f.c, &f.calls[id-1]
	began := c.now
	x.sparedSince, x.wasSpared = began, true
	c.happens(Spared, int64(f.index), int64(id))

	c.after(sparedMost, func() {
		if f.calls[id-1].sparedSince == began {
			f.endCall(id, model.NoBackend, false)
		}
	})
}

// whyExpired returns the reason with which a call ends when no answer comes.
func (x *call) whyExpired() model.Reason {
	if x.sparedSince != 0 {
		return model.NoBackend
	}
	return model.DeadlineCannotBeMet
}

// isReady reports whether some backend serves a call's target, as far as announced.
func (s *frontSession) isReady(k int, a ask) bool {
	if a.family {
		return s.families[s.f.c.familyOf(k)].Ready
	}
	return s.ready[k]
}
