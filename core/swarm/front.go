package swarm

import (
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// grace is how long after its deadline a frontend waits for an answer, as package frontend does.
const grace Duration = 20e6

// front is a simulated frontend. It outlives its sessions.
type front struct {
	peer
	calls     []call // by id−1
	darkUntil Time   // until then no backend reaches it
}

// call is one request as its caller sees it.
type call struct {
	deadline  Time
	model     int
	asks      ask    // target within the model's family
	named     uint32 // the service that its latest Submit named
	junk      uint32 // model id of an invalid Submit; such a call has no deadline
	priority  uint8
	live      bool
	submitted bool // it was sent to some scheduler

	// A hook prepares the input: see front_hook.go.
	expected  Time // when the scheduler was told that the input would be there; 0: there is no hook
	inputAt   Time // when the hook returns
	preparing bool // it has not returned
	again     bool // a backend was refused meanwhile

	slow bool // one of its batches runs on a GPU that is slower than its kind

	sparedSince Time // when it began to wait for another leader or for its model; 0: it does not wait
	wasSpared   bool
	resubmits   int
}

func (c *Cluster) newFront() *front {
	f := &front{peer: newPeer(c, len(c.fronts))}

	// A frontend that obeys another scheduler submits its unanswered calls there.
	f.open, f.switched = f.openSession, f.submitAgain
	if f.old {
		c.happens(OldPeer, int64(f.index), 0)
	}
	c.fronts = append(c.fronts, f)
	f.connectAll()
	return f
}

// endCall ends a call unless it has ended.
func (f *front) endCall(id uint64, why model.Reason, local bool) {
	c, x := f.c, f.waitingCall(id)
	if x == nil {
		return
	}

	x.live = false
	c.addMark("answer", int64(f.index), int64(id), int64(why))

	switch {
	case local:
		c.report.Local++
	case why != model.ReasonNone:
		c.report.Ended++
		c.report.Reasons[why]++
	case c.now > x.deadline:
		c.report.Late++
	default:
		c.report.Good++
		c.report.Work += c.models[x.model].cost
		if x.wasSpared {
			c.report.Saved++
		}
	}

	c.check.checkCallEnd(f, id, why, local)
}

// waitingCall returns the call of an id if it has not ended, else nil.
func (f *front) waitingCall(id uint64) *call {
	if f.dead || id == 0 || id > uint64(len(f.calls)) || !f.calls[id-1].live {
		return nil
	}
	return &f.calls[id-1]
}

// newSubmit returns the Submit of a call as sent now. Its budget is reduced by the network delay in both directions.
func (f *front) newSubmit(s *frontSession, id uint64) wire.Submit {
	x := &f.calls[id-1]

	// The frontend's clock has its own rate, so its budget is wrong by that share.
	budget := x.deadline.Sub(f.c.now) - 2*(f.c.o.Delay+f.c.o.Vary)

	// A later Cancel must name what this Submit names.
	x.named, _ = s.namedService(x.model, x.asks)
	x.submitted = true
	return wire.Submit{ID: id, Model: x.named, Priority: x.priority, Budget: int64(float64(budget) * f.clockRate),
		Input: model.Descriptor{Key: id, Length: 1}, ReadyIn: f.readyIn(x)}
}

// submit sends Submits over a session, which the checker sees before and after the engine.
func (f *front) submit(s *frontSession, m []wire.Submit) {
	if f.old {
		m = f.c.recodeSubmits(m)
	}
	f.c.send(&s.link, toEngine, LostSubmit, f.c.o.LoseSubmit, func() {
		f.c.check.beforeSubmit(s, m)
		if !s.h.Submit(m) {
			f.c.check.fail("Submit on an open session was refused")
		}
		f.c.check.afterSubmit(s, m)
	})
}

// cancel sends a Cancel to the obeyed scheduler.
func (f *front) cancel(id uint64) {
	s := f.obeyedSession()
	if s == nil {
		return
	}

	f.c.send(&s.link, toEngine, LostCancel, f.c.o.LoseCancel, func() {
		f.c.addMark("cancel", int64(f.index), int64(id), 0)
		x := &f.calls[id-1]
		m := wire.Cancel{ID: id, Model: x.named}
		if x.deadline == 0 {
			m.Model = x.junk
		}

		// The second Cancel names an id that was never submitted, which the engine must ignore.
		s.h.Cancel([]wire.Cancel{m, {ID: id + 1e9, Model: m.Model}})
		f.c.check.afterCancel(s, &m)
	})
}
