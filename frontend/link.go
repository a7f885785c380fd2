package frontend

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// The causes of requests that ended because nobody could be asked.
var (
	errNoScheduler = errors.New("the scheduler is not connected")
	errModelLost   = errors.New("the scheduler announces the model no more")
)

// events are what the link tells; its calls come from one goroutine.
type events struct{ c *Client }

// Models takes an announcement, of all models or of those that changed, and submits what waits for a model of it or for the session.
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

// Link tells that the session opened or was lost.
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

// isFresh tells whether nothing was announced yet since the session came up.
func (s *session) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.fresh
}

// noteOpened notes an event and begins an epoch once the session is up and its models are known.
func (s *session) noteOpened(now int64, note func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note()

	// A session is open once the link is up and its first catalogue has come: the models' ids of the last session
	// mean nothing.
	if s.up && s.fresh && !s.open.Load() {
		s.epoch.Add(1)
		s.changed.Store(now)
		s.open.Store(true)
	}
}

// noteClosed notes that the session was lost; false: it was not open.
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

// resubmitAll submits what earlier sessions, or none, left without an answer.
func (c *Client) resubmitAll() {
	epoch := c.session.epoch.Load()
	if c.pending.live.Load() == 0 || !c.session.open.Load() {
		return
	}

	n := 0
	for i := range c.pending.shards {
		n += c.resubmitShard(&c.pending.shards[i], epoch)
	}
	c.left.Store(1) // have the sweep look for those whose model has not come back
	if n > 0 {
		c.log.Info("requests submitted again", "requests", n)
	}
}

// resubmitShard submits a shard's requests of earlier epochs, with the budget that is left.
func (c *Client) resubmitShard(s *shard, epoch uint64) int {
	now := c.now()
	var again []wire.Submit

	s.mu.Lock()
	for _, p := range s.slots {
		// Those of this session are under way already; those past their target would only be refused.
		if p.state != live || p.epoch >= epoch || p.target <= now {
			continue
		}

		m := c.Model(p.model.Name, p.model.announced)
		if m == nil || m.lostAt > 0 {
			continue // it may come yet; else the sweep ends the request
		}

		service, err := m.serviceFor(p.floor)
		if err != nil {
			continue
		}

		// Marked before it is sent, so that no other walk sends it, too.
		p.epoch, p.service = epoch, service
		p.resubmits++
		again = append(again, wire.Submit{ID: p.id(), Model: service, Priority: p.priority, Budget: p.target - now, Input: p.input})
	}
	s.mu.Unlock()

	if len(again) == 0 {
		return 0
	}

	c.stats.resubmits.Add(uint64(len(again)))
	if err := c.link.Load().Submit(again); err != nil {
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

// reasonOf returns the reason that a message gave; what a newer peer may send counts as a failure.
func reasonOf(r model.Reason) model.Reason {
	// A newer scheduler may know more reasons; to a caller each of them is a failure.
	if r == model.ReasonNone || r >= model.ReasonCount {
		return model.ExecutionFailed
	}
	return r
}

// resubmitsMax bounds how often a request is submitted again for what one outcome said.
const resubmitsMax = 4

// endByOutcome ends one request, unless its input was missing because its hook was still at work, or its version went
// while another one serves.
func (c *Client) endByOutcome(id uint64, reason model.Reason, now int64) {
	p := c.pending.findCall(id)
	if p == nil {
		c.stats.strays.Add(1)
		return
	}

	// A backend may read an input before its hook has filled it. That is no failure of the request's, within
	// limits.
	if reason == model.InputUnavailable && p.hooked && p.resubmits < resubmitsMax {
		if p.again = p.filling; p.again {
			p.shard.mu.Unlock()
		} else {
			c.askAgain(p) // the read came before the hook's end, its failure after
		}
		return
	}
	if reason == model.NoBackend && p.newest && p.resubmits < resubmitsMax && c.moveToNewest(p) {
		c.askAgain(p)
		return
	}

	p.shard.takeCall(p)
	p.shard.mu.Unlock()
	p.finishCall(reason, now)
}

// moveToNewest makes a call that named no version one for the version that serves now, and tells whether that is another
// one than it was submitted for: a version that was replaced takes no request with it. The shard is locked.
func (c *Client) moveToNewest(p *call) bool {
	m := c.Model(p.model.Name, "")
	if m != nil && p.model.class != "" {
		m = c.Model(m.Name, model.ClassVersion(m.announced, p.model.class))
	}
	if m == nil || m.ID == p.model.ID || !m.Ready || m.lostAt > 0 {
		return false
	}
	// The input was packed, and the output's buffer was made, for tensors of the version before.
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

// receiveResult takes a result message from a backend and copies the output once, to where the caller
// gets it. It runs on the data plane's loop.
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

	// Whoever claims a call ends it; a second answer to the same request finds none.
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

	// The caller's memory is used where it is large enough, so that the output is copied once.
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

// marginEvery is how many ticks lie between two looks at what was measured.
const marginEvery = 512

// measureMargin sets the margin, which covers what the scheduler cannot see: an output's way back and the caller's waking. It
// is what a message there and back takes at p99, over the slowest peer, unless the margin is given.
func (c *Client) measureMargin() {
	// The slowest peer counts: any backend may be the one that answers.
	trip, echo := int64(0), int64(0)
	for _, p := range c.node.Stats().Peers {
		trip, echo = max(trip, int64(p.Echo.P99)), max(echo, int64(p.Echo.P50))
	}
	c.echo.Store(echo)

	if c.o.Margin <= 0 {
		c.margin.Store(limits.ReturnTime(trip))
	}
}

// sweepCalls ends what nobody else ended (I1). It is awake only while requests are live.
func (c *Client) sweepCalls() {
	defer c.done.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	var buf []*call

	for n := 0; ; n++ {
		// Measured soon after the start, and then once in a second or so.
		if n%marginEvery == marginEvery/8 {
			c.measureMargin()
		}

		// With nothing live there is nothing to expire: the sweep sleeps until a request comes.
		if c.pending.live.Load() == 0 {
			t.Stop()
			select {
			case <-c.closing:
				return
			case <-c.wake:
				t.Reset(tick)
			}
		}

		select {
		case <-c.closing:
			return
		case <-t.C:
			buf = c.expireCalls(buf[:0])
		}
	}
}

// expireCalls ends the requests whose time is over, and those that a lost scheduler left behind.
func (c *Client) expireCalls(buf []*call) []*call {
	now := c.now()
	for i := range c.pending.shards {
		buf = c.pending.shards[i].claimExpired(now, buf)
	}

	for _, p := range buf {
		p.local = true
		c.cancelRequest(p.id(), p.service)

		reason := model.DeadlineCannotBeMet
		if p.cause = c.whyUnheard(p); p.cause != nil {
			reason = model.NoBackend
		}
		p.finishCall(reason, now)
	}

	if now-c.session.changed.Load() > int64(c.o.Reconnect) {
		c.endLeft(now)
	}
	return buf
}

// silentMax is for how long a scheduler may say nothing before an expired request's end is its fault.
const silentMax = 200 * time.Millisecond

// whyUnheard returns why no scheduler can have answered a request that has expired; nil where one could.
// An application that is told of an outage can turn elsewhere; one that is told of its deadline sheds load.
func (c *Client) whyUnheard(p *call) error {
	// The cause that explains most comes first: no scheduler, then no model, then a scheduler that is silent.
	if !c.session.open.Load() {
		return errNoScheduler
	}
	if p.epoch < c.session.epoch.Load() {
		return errModelLost // it still waited for its model in this session
	}
	if link, ok := c.link.Load().FrontendLink.(interface{ Silent() time.Duration }); ok {
		if d := link.Silent(); d >= silentMax {
			return fmt.Errorf("the scheduler has not been heard for %v", d)
		}
	}
	return nil
}

// endLeft ends the requests that no open session has, once it has had its time.
func (c *Client) endLeft(now int64) {
	epoch, open := c.session.epoch.Load(), c.session.open.Load()
	if !open {
		c.failCalls(func(*call) bool { return true }, model.NoBackend, errNoScheduler)
		return
	}

	// Nothing is left over in most sweeps: the walk over all calls is spared.
	if c.left.Load() > 0 {
		c.left.Store(0)
		c.failCalls(func(p *call) bool {
			old := p.epoch < epoch && now-p.start > int64(c.o.Reconnect)
			if p.epoch < epoch && !old {
				c.left.Add(1)
			}
			return old
		}, model.NoBackend, errModelLost)
	}
}

// failCalls ends the live requests that which selects; it is asked under the shard's lock.
func (c *Client) failCalls(which func(*call) bool, reason model.Reason, cause error) {
	now := c.now()
	for i := range c.pending.shards {
		// Calls are claimed under the lock and ended outside: an end wakes its caller.
		s := &c.pending.shards[i]
		var ended []*call
		s.mu.Lock()
		for _, p := range s.slots {
			if p.state == live && which(p) {
				s.takeCall(p)
				ended = append(ended, p)
			}
		}
		s.mu.Unlock()
		for _, p := range ended {
			p.local, p.cause = true, cause
			p.finishCall(reason, now)
		}
	}
}

// cancelRequest tells the scheduler, if it is there, that nobody waits for a request any more.
func (c *Client) cancelRequest(id uint64, service uint32) {
	if link := c.link.Load(); link != nil && c.Connected() {
		_ = link.Cancel(wire.Cancel{ID: id, Model: service}) // a lost session has forgotten the request anyway
	}
}
