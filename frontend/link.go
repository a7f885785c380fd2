package frontend

import (
	"errors"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Causes of requests that ended because no scheduler or backend could be reached.
var (
	errNoScheduler = errors.New("the scheduler is not connected")
	errModelLost   = errors.New("the scheduler announces the model no more")
)

// events receives the link's events; its methods are called from one goroutine.
type events struct{ c *Client }

// Models receives an announcement of all models, or of changes, and submits the calls that wait for a model or for
// the session.
func (e events) Models(infos []model.Info) {
	c := e.c
	before := c.models.table.Load()
	table, bad := newModelTable(infos, before, c.now(), c.session.isFresh())
	for _, err := range bad {
		c.log.Warn("model left out", "err", err)
	}
	c.models.table.Store(table)
	c.session.noteOpened(c.now(), func() { c.session.fresh = true })
	c.announced.tellChange()
	c.resubmitAll()
	if before == nil {
		close(c.ready)
	}
}

// Link reports that the session opened or was lost.
func (e events) Link(up bool, err error) {
	c := e.c
	if up {
		c.session.noteOpened(c.now(), func() { c.session.up = true })
		c.log.Info("scheduler connected")
		c.resubmitAll()
		return
	}

	lost := c.session.noteClosed(c.now())
	c.announced.tellChange()
	c.loseCommands()
	if lost && !c.closed() {
		c.log.Warn("scheduler lost, reconnecting", "err", err)
	}
}

// isFresh reports whether the session has had no announcement yet.
func (s *session) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.fresh
}

// noteOpened records an event, and starts an epoch once the session is up and its models are known.
func (s *session) noteOpened(now int64, note func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note()

	// A session is open once the link is up and its first catalogue has arrived: the previous session's model ids
	// mean nothing.
	if s.up && s.fresh && !s.open.Load() {
		s.epoch.Add(1)
		s.changed.Store(now)
		s.open.Store(true)
	}
}

// noteClosed records that the session was lost; false: it was not open.
func (s *session) noteClosed(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up, s.fresh = false, false

	was := s.open.Swap(false)
	if was {
		s.changed.Store(now)
	}
	return was
}

// resubmitAll submits the calls that earlier sessions left unanswered, or that had no session.
func (c *Client) resubmitAll() {
	epoch := c.session.epoch.Load()
	if c.pending.live.Load() == 0 || !c.session.open.Load() {
		return
	}

	n := 0
	for i := range c.pending.shards {
		n += c.resubmitShard(&c.pending.shards[i], epoch)
	}
	c.left.Store(1) // make the sweep look for calls whose model has not returned
	if n > 0 {
		c.log.Info("requests submitted again", "requests", n)
	}
}

// resubmitShard submits a shard's calls of earlier epochs with their remaining budget.
func (c *Client) resubmitShard(s *shard, epoch uint64) int {
	now := c.now()
	var again []wire.Submit

	s.mu.Lock()
	for _, p := range s.slots {
		// Calls of this session are in progress already; those past their target would only be rejected.
		if p.state != live || p.epoch >= epoch || p.target <= now {
			continue
		}

		m := c.Model(p.model.Name, p.model.announced)
		if m == nil || m.lostAt > 0 || p.spared && !m.Ready {
			continue // the model may still come; otherwise the sweep ends the request
		}

		service, err := m.serviceFor(p.floor)
		if err != nil {
			continue
		}

		if p.spared {
			c.unspareCall(p)
		}

		// Marked before it is sent, so that no concurrent walk sends it too.
		p.epoch, p.service = epoch, service
		p.resubmits++
		again = append(again, wire.Submit{ID: p.id(), Model: service, Priority: p.priority, Budget: p.target - now, Input: p.input,
			ReadyIn: p.readyIn(now)})
	}
	s.mu.Unlock()

	if len(again) == 0 {
		return 0
	}

	c.stats.resubmits.Add(uint64(len(again)))
	if err := c.submitWithin(again, epoch); err != nil {
		c.log.Warn("resubmit", "requests", len(again), "err", err) // the next session tries again
	}
	return len(again)
}

// Outcomes ends requests without an output.
func (e events) Outcomes(all []wire.Outcome) {
	now := e.c.now()
	for _, o := range all {
		e.c.endByOutcome(o.ID, reasonOf(o.Reason), now)
	}
}

// reasonOf returns the reason in a message.
func reasonOf(r model.Reason) model.Reason {
	// A newer scheduler may know more reasons; to a caller each of them is a failure.
	if r == model.ReasonNone || r >= model.ReasonCount {
		return model.ExecutionFailed
	}
	return r
}

// resubmitsMax bounds how often a request is submitted again because of outcomes.
const resubmitsMax = 4

// endByOutcome ends a request, unless its input was missing because its hook had not returned, or its version has
// been replaced by another that serves.
func (c *Client) endByOutcome(id uint64, reason model.Reason, now int64) {
	p := c.pending.findCall(id)
	if p == nil {
		c.stats.strays.Add(1)
		return
	}

	// A backend may read an input before its hook has filled it. That is not a failure of the request, within limits.
	if reason == model.InputUnavailable && p.hooked && p.resubmits < resubmitsMax {
		if p.again = p.filling; p.again {
			p.shard.mu.Unlock()
		} else {
			c.askAgain(p) // the hook ended between the read and the report of its failure
		}
		return
	}
	if reason == model.NoBackend && p.newest && p.resubmits < resubmitsMax && c.moveToNewest(p) {
		c.askAgain(p)
		return
	}
	if (reason == model.NoBackend || reason == model.BackendLost) && p.resubmits < resubmitsMax && c.standbys {
		c.spareCall(p, now)
		return
	}

	p.shard.takeCall(p)
	p.shard.mu.Unlock()
	p.finishCall(reason, now)
}

// moveToNewest switches a call that named no version to the version that serves now, and reports whether that differs
// from the one it was submitted for. So requests survive the replacement of a version. The shard is locked.
func (c *Client) moveToNewest(p *call) bool {
	m := c.Model(p.model.Name, "")
	if m != nil && p.model.class != "" {
		m = c.Model(m.Name, model.ClassVersion(m.announced, p.model.class))
	}
	if m == nil || m.ID == p.model.ID || !m.Ready || m.lostAt > 0 {
		return false
	}
	// The input and the output's buffer have the layout of the earlier version's tensors.
	if !model.SameTensors(m.Inputs, p.model.Inputs) || !model.SameTensors(m.Outputs, p.model.Outputs) {
		return false
	}

	service, err := m.serviceFor(p.floor)
	if err != nil {
		return false
	}
	p.model, p.service = m, service
	return true
}

// receiveResult receives a result message from a backend and copies the output once, to its final place. It runs on
// the data plane's loop.
func (c *Client) receiveResult(from *rdma.Peer, msg []byte) {
	h, out, err := wire.DecodeResult(msg)
	if err != nil {
		c.stats.strays.Add(1)
		c.log.Debug("result refused", "err", err)
		return
	}

	if h.Reason != 0 {
		c.endByOutcome(h.ID, reasonOf(h.Reason), c.now())
		return
	}

	// Whoever claims a call ends it; a duplicate answer finds no call.
	p := c.pending.claimCall(h.ID)
	if p == nil {
		c.stats.strays.Add(1)
		if h.Held {
			releaseStray(from, out)
		}
		return
	}

	if h.Held && p.holds {
		p.holder = from
	} else if want := p.model.fullOutput; want >= 0 && want != len(out) {
		c.log.Warn("result of a wrong size", "model", p.model.Name, "bytes", len(out), "want", want)
		p.finishCall(model.ExecutionFailed, c.now())
		return
	}

	// If the caller's memory is large enough, the output is copied there directly.
	if p.dst != nil && len(out) <= len(p.dst) && p.holder == nil {
		p.out = p.dst[:len(out)]
	} else {
		p.store = c.results.getMemory(len(out))
		p.out = (*p.store)[:len(out)]
	}

	copy(p.out, out)
	p.exec, p.answer, p.staged, p.stages = h.Exec, h.Answer, h.Staged, h.Stages
	p.finishCall(model.ReasonNone, c.now())
}

// cancelRequest tells the scheduler, if connected, that a request is abandoned.
func (c *Client) cancelRequest(id uint64, service uint32) {
	if link := c.link.Load(); link != nil && c.Connected() {
		_ = link.Cancel(wire.Cancel{ID: id, Model: service}) // a lost session has forgotten the request anyway
	}
}
