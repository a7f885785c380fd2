package frontend

import (
	"errors"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// takeRequest writes a request to its slot.
func (p *call) takeRequest(r *Request, m *Model, service uint32) {
	p.model, p.service, p.floor, p.priority = m, service, r.AccuracyFloor, r.Priority
	p.dst, p.newest = r.Output, r.Newest || r.Version == ""
	p.hooked = r.Prepare != nil
	p.filling = p.hooked
	p.holds, p.holder = r.Hold != 0 && r.composed, nil

	p.local, p.answer, p.exec, p.staged = false, 0, 0, false
}

// farthest is the latest deadline of a request, on the client's clock.
const farthest = 1 << 62

// setTimes sets the start of a request and the three moments at which it may end.
func (c *Client) setTimes(p *call, now int64, budget time.Duration) {
	// A budget of centuries must not overflow, nor what is added to the deadline.
	p.start, p.deadline = now, now+min(int64(budget), farthest-now)

	// The scheduler gets an earlier deadline than the caller's, to leave time for the way back. The sweep comes after
	// both.
	p.target = p.deadline - limits.ReturnMargin(c.margin.Load(), int64(budget))
	p.expire = p.deadline + int64(c.o.Grace)
}

// submitCalls submits the calls of a burst in one message, so that the scheduler sees all of them before it makes a
// batch of the first. Sent one by one, the rows of a call would end up in several batches, and be dropped separately.
// Nil calls have not started.
func (c *Client) submitCalls(burst []*call) {
	epoch := c.session.epoch.Load()
	all := make([]wire.Submit, 0, len(burst))

	for _, p := range burst {
		switch {
		case p == nil:
		case c.mustWait(p):
			c.leaveCall(p, epoch)
		case p.held:
			c.holdCall(p, epoch)
		default:
			all = append(all, c.armSubmit(p, epoch))
		}
	}

	if len(all) > 0 {
		c.sendSubmits(all, epoch)
	}
	for _, p := range burst {
		if p != nil {
			c.endIfClosed(p)
		}
	}
}

// armSubmit makes a call live and returns its Submit. It must be live before it is sent: the answer may come before
// Submit returns.
func (c *Client) armSubmit(p *call, epoch uint64) wire.Submit {
	s := wire.Submit{Model: p.service, Priority: p.priority, Budget: p.target - p.start, Input: p.input, ReadyIn: p.readyIn(p.start)}
	s.ID = c.pending.armCall(p, epoch)
	return s
}

// sendSubmits sends requests to the scheduler. If that fails, they end or wait for the next session.
func (c *Client) sendSubmits(all []wire.Submit, epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll() // the new session may have looked for earlier calls before these were live
		return
	}

	err := c.submitWithin(all, epoch)
	switch {
	case err == nil:
	case errors.Is(err, control.ErrUnavailable): // the event about it may be on its way
		c.left.Add(int64(len(all)))
		c.resubmitLate(epoch)
	default:
		for i := range all {
			if q := c.pending.claimCall(all[i].ID); q != nil {
				q.local, q.cause = true, err
				q.finishCall(model.NoBackend, c.now())
			}
		}
	}
}

// submitWithin sends requests in the session of an epoch, or not at all: to another session their model ids would name
// other models, whose answers would count.
func (c *Client) submitWithin(all []wire.Submit, epoch uint64) error {
	// The order matters. A session closes before the link turns to the next one, and the epoch changes before that is
	// open, so an open session of this epoch is the one that was taken.
	to := c.link.Load().session()
	if to == nil || !c.session.open.Load() || c.session.epoch.Load() != epoch {
		return control.ErrUnavailable
	}
	return to.Submit(all)
}

// submitCall makes a call live and sends it. Without a session, or without the model, the call waits live for both.
// If the session is lost meanwhile, the next one takes over the call.
func (c *Client) submitCall(p *call) { c.submitIn(p, c.session.epoch.Load()) }

// submitIn is submitCall for the session of an epoch; another one may have opened since.
func (c *Client) submitIn(p *call, epoch uint64) {
	switch {
	case c.mustWait(p):
		c.leaveCall(p, epoch)
		return
	case p.held:
		c.holdCall(p, epoch)
		return
	}

	p.submit[0] = c.armSubmit(p, epoch)
	c.sendSubmits(p.submit[:], epoch)
}

// mustWait reports whether the scheduler, or the call's model, is missing at present.
func (c *Client) mustWait(p *call) bool { return !c.session.open.Load() || p.model.lostAt > 0 }

// leaveCall makes a call live without a session: the next session or announcement of its model takes it over.
func (c *Client) leaveCall(p *call, epoch uint64) {
	c.left.Add(1)
	c.pending.armCall(p, 0)
	c.resubmitLate(epoch)
}

// holdCall makes a call live that prepareInput sends.
func (c *Client) holdCall(p *call, epoch uint64) {
	c.pending.armCall(p, epoch)
	c.resubmitLate(epoch)
}

// resubmitLate covers a session that opened after it was checked and before the call was live.
func (c *Client) resubmitLate(epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll()
	}
}
