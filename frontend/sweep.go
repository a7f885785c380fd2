package frontend

import (
	"fmt"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
)

// marginEvery is the number of ticks between updates of the margin.
const marginEvery = 512

// measureMargin sets the margin, which covers an output's way back and the caller's waking, since the scheduler
// cannot see these. Unless Options.Margin is set, it is the p99 of a message's round trip to the slowest peer.
func (c *Client) measureMargin() {
	// The slowest peer counts, as any backend may answer.
	trip, echo := int64(0), int64(0)
	for _, p := range c.node.Stats().Peers {
		trip, echo = max(trip, int64(p.Echo.P99)), max(echo, int64(p.Echo.P50))
	}
	c.echo.Store(echo)

	if c.o.Margin <= 0 {
		c.margin.Store(limits.ReturnTime(trip))
	}
}

// sweepCalls ends requests that nothing else has ended (I1). It is awake only while requests are live.
func (c *Client) sweepCalls() {
	defer c.done.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	var buf []*call

	for n := 0; ; n++ {
		// Measured soon after the start, and then about once a second.
		if n%marginEvery == marginEvery/8 {
			c.measureMargin()
		}

		// Without live requests nothing can expire: sleep until one comes.
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

// silentMax is how long a scheduler may be silent before an expired request counts as its fault.
const silentMax = 200 * time.Millisecond

// whyUnheard returns why no scheduler can have answered an expired request; nil if one could. An application that
// learns of an outage can turn elsewhere, while one that learns of a missed deadline sheds load.
func (c *Client) whyUnheard(p *call) error {
	// The cause that explains most comes first: no scheduler, no model, a silent scheduler.
	if !c.session.open.Load() {
		return errNoScheduler
	}
	if p.spared {
		return errNoSuccessor
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

// endLeft ends the requests without an open session, once their time is over.
func (c *Client) endLeft(now int64) {
	epoch, open := c.session.epoch.Load(), c.session.open.Load()
	if !open {
		c.failCalls(func(*call) bool { return true }, model.NoBackend, errNoScheduler)
		return
	}

	// Most sweeps find none left, and skip the walk over all calls.
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

// failCalls ends the live requests that which selects; which is called under the shard's lock.
func (c *Client) failCalls(which func(*call) bool, reason model.Reason, cause error) {
	now := c.now()
	for i := range c.pending.shards {
		// Calls are claimed under the lock and ended outside, since an end wakes the caller.
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
