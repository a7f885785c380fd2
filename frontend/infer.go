package frontend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Infer asks for one inference and waits for its end, or ctx's. The deadline is ctx's, or the model's SLO from now; the
// earlier of both where the model says so (SLOBinds). A request without an output ends in an *OutcomeError, an argument
// that cannot be right in an error that wraps ErrInvalid; a closed client answers ErrClosed.
func (c *Client) Infer(ctx context.Context, model string, in *Buffer) (Result, error) {
	return c.Do(ctx, Request{Model: model, Input: in})
}

// InferCopy is Infer for tensors that lie in ordinary memory, in the order of the model's inputs:
// they are copied to a registered buffer first.
func (c *Client) InferCopy(ctx context.Context, model string, inputs ...[]byte) (Result, error) {
	n := 0
	for _, in := range inputs {
		n += len(in)
	}

	b, err := c.Buffer(n)
	if err != nil {
		return Result{}, err
	}
	defer b.Free()

	// The tensors lie one behind the other, as the model's layout has them.
	dst := b.Bytes()[:0]
	for _, in := range inputs {
		dst = append(dst, in...)
	}
	return c.Infer(ctx, model, b)
}

// Do is Infer with every option.
func (c *Client) Do(ctx context.Context, r Request) (Result, error) {
	if !r.Sequence.IsZero() && !r.step {
		return c.doStep(ctx, r)
	}

	p, err := c.beginParts(ctx, &r)
	if err != nil {
		return Result{}, err
	}
	defer r.endParts()
	c.submitCall(p)
	c.endIfClosed(p)

	// The request is under way while its input is prepared: both take time at once.
	if r.Prepare != nil {
		c.prepareInput(p, &r)
	}
	return c.waitFor(ctx, p, r.Input)
}

// checkRequest finds the request's model, and what of the request cannot be right.
func (c *Client) checkRequest(ctx context.Context, r *Request) (*Model, error) {
	m := c.Model(r.Model, r.Version)
	if m != nil && r.Input.isLent() && (m.shaped || m.fullInput < 0) {
		return nil, refuseLent(m)
	}
	if m != nil && m.shaped {
		var err error
		if m, err = c.classFor(m, r.Input); err != nil {
			return nil, err
		}
	}

	// What ends the request for sure comes first; then the input, whose faults are the caller's to mend.
	switch {
	case c.closed():
		return nil, ErrClosed
	case ctx.Err() == context.DeadlineExceeded:
		return nil, &OutcomeError{Reason: model.DeadlinePast, Model: r.Model, Local: true}
	case ctx.Err() != nil:
		return nil, &OutcomeError{Reason: model.Canceled, Model: r.Model, Local: true, Cause: context.Cause(ctx)}
	case m == nil:
		return nil, c.refuseUnknown(r)
	case m.Reason != "" && len(m.Inputs) == 0: // only why it is not served is known, not what it takes
		return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Local: true, Cause: errors.New(m.Reason)}
	case r.Input == nil || r.Input.mem == nil || r.Input.of != &c.memory:
		return nil, fmt.Errorf("%w: model %q: input: a Buffer of this client that is not freed must be given", ErrInvalid, r.Model)
	case r.step != (m.Sequence != nil) || r.step == r.Sequence.IsZero():
		return nil, fmt.Errorf("%w: model %q: want Sequence of each request for a model that keeps sequences, with Do, and of no other", ErrInvalid, r.Model)
	case r.composed: // its parts were looked at one by one
	case m.fullInput >= 0 && r.Input.size != m.fullInput:
		return nil, fmt.Errorf("%w: model %q: input of %d bytes: must be %d", ErrInvalid, r.Model, r.Input.size, m.fullInput)
	case m.InputMax > 0 && r.Input.size > int(m.InputMax):
		return nil, fmt.Errorf("%w: model %q: input of %d bytes: must be at most %d (parameter bytes_max of its configuration)", ErrInvalid, r.Model, r.Input.size, m.InputMax)
	case r.Output != nil && len(r.Output) < m.OutputBytes:
		return nil, fmt.Errorf("%w: model %q: output buffer of %d bytes: must be at least %d", ErrInvalid, r.Model, len(r.Output), m.OutputBytes)
	}
	return m, nil
}

// refuseLent refuses bytes that may change, or vanish, while this client looks at them.
func refuseLent(m *Model) error {
	return fmt.Errorf("%w: model %q: input: bytes of another process (Lend): must be a Buffer of the client's own, for the model has texts, open dimensions or sequences", ErrInvalid, m.Name)
}

// beginCall takes a slot for a request and fills it. The call that it returns must be submitted and waited for.
func (c *Client) beginCall(ctx context.Context, r *Request) (*call, error) {
	m, err := c.checkRequest(ctx, r)
	if err != nil {
		return nil, err
	}

	service, err := m.serviceFor(r.AccuracyFloor)
	if err != nil {
		return nil, err
	}

	now, budget := c.now(), m.budgetOf(ctx)
	if budget <= 0 {
		return nil, &OutcomeError{Reason: model.DeadlinePast, Model: m.Name, Budget: budget, Local: true}
	}

	// A scheduler that has been away for long is not waited for by new requests.
	if !c.session.open.Load() && now-c.session.changed.Load() > int64(c.o.Reconnect) {
		return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Budget: budget, Local: true, Cause: errNoScheduler}
	}

	// A backend reads the buffer where it lies, so two requests cannot share one.
	if !r.Input.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w: model %q: input: another request has this Buffer: each under way needs its own", ErrInvalid, r.Model)
	}

	p, first := c.pending.takeSlot(rand.Uint32())
	if p == nil {
		r.Input.busy.Store(false)
		return nil, &OutcomeError{Reason: model.QueueFull, Model: m.Name, Budget: budget, Local: true,
			Cause: fmt.Errorf("%d requests are live, the limit of this client", c.o.LiveMax)}
	}

	c.stats.requests.Add(1)
	p.takeRequest(r, m, service)
	c.setTimes(p, now, budget)

	// From here on backends may read the input; one that a hook still fills is only named.
	p.input = r.Input.offerInput(p.hooked)
	if r.composed {
		p.input = p.input.In(model.Composed)
	}

	// The sweep sleeps while nothing is live; the first request wakes it.
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return p, nil
}

// endIfClosed ends a call that has been submitted if the client is closed: Close may have looked before the call was live.
func (c *Client) endIfClosed(p *call) {
	if c.closed() {
		c.failCalls(func(q *call) bool { return q == p }, model.Canceled, ErrClosed)
	}
}

// budgetOf is how long a request to the model may take: until its context's deadline, or the model's SLO where it has none.
func (m *Model) budgetOf(ctx context.Context) time.Duration {
	budget := m.Deadline()
	if d, ok := ctx.Deadline(); ok {
		// Callers that set a generous deadline out of habit do not mean that the model may take that long.
		if asked := time.Until(d); asked < budget || !m.SLOBinds {
			budget = asked
		}
	}
	return budget
}

// takeRequest writes what a request asks for into its slot, over what the last one left there.
func (p *call) takeRequest(r *Request, m *Model, service uint32) {
	p.model, p.service, p.floor, p.priority = m, service, r.AccuracyFloor, r.Priority
	p.dst, p.newest = r.Output, r.Newest || r.Version == ""
	p.hooked = r.Prepare != nil
	p.filling = p.hooked
	p.holds, p.holder = r.Hold != 0 && r.composed, nil

	p.local, p.answer, p.exec, p.staged = false, 0, 0, false
}

// setTimes writes when a request began and the three moments at which it may end.
func (c *Client) setTimes(p *call, now int64, budget time.Duration) {
	p.start, p.deadline = now, now+int64(budget)
	if p.deadline < now { // a budget of centuries
		p.deadline = 1 << 62
	}

	// The scheduler is told an earlier end than the caller: the way back must fit in. The sweep comes later than both.
	p.target = p.deadline - limits.ReturnMargin(c.margin.Load(), int64(budget))
	p.expire = p.deadline + int64(c.o.Grace)
}

// submitCalls submits the calls of a burst in one message, so that the scheduler looks at all of them before it makes a batch of the first: sent one by
// one, the rows of a call end up in two batches or more, and are dropped apart. Nil ones have not begun.
func (c *Client) submitCalls(burst []*call) {
	epoch := c.session.epoch.Load()
	all := make([]wire.Submit, 0, len(burst))

	for _, p := range burst {
		switch {
		case p == nil:
		case c.mustWait(p):
			c.leaveCall(p, epoch)
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

// armSubmit makes a call live and returns what submits it. It is live before it is sent: the answer may come before Submit returns.
func (c *Client) armSubmit(p *call, epoch uint64) wire.Submit {
	s := wire.Submit{Model: p.service, Priority: p.priority, Budget: p.target - p.start, Input: p.input}
	s.ID = c.pending.armCall(p, epoch)
	return s
}

// sendSubmits sends requests to the scheduler; those that it cannot be given end, or wait for the next session.
func (c *Client) sendSubmits(all []wire.Submit, epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll() // the walk over earlier sessions' calls may have passed before these were live
		return
	}

	err := c.link.Load().Submit(all)
	switch {
	case err == nil:
	case errors.Is(err, control.ErrUnavailable): // the event that tells so may be on its way
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

// submitCall makes a call live and sends it. Without a session, or without the model, the call waits
// live for both; if the session is lost meanwhile, the next one takes the call up.
func (c *Client) submitCall(p *call) { c.submitIn(p, c.session.epoch.Load()) }

// submitIn is submitCall for the session that was looked at last. Another one may have opened since.
func (c *Client) submitIn(p *call, epoch uint64) {
	if c.mustWait(p) {
		c.leaveCall(p, epoch)
		return
	}

	p.submit[0] = c.armSubmit(p, epoch)
	c.sendSubmits(p.submit[:], epoch)
}

// mustWait tells whether there is no scheduler now, or not the call's model.
func (c *Client) mustWait(p *call) bool { return !c.session.open.Load() || p.model.lostAt > 0 }

// leaveCall makes a call live that no session has: whoever comes back takes it, the scheduler or the model.
func (c *Client) leaveCall(p *call, epoch uint64) {
	c.left.Add(1)
	c.pending.armCall(p, 0)
	c.resubmitLate(epoch)
}

// resubmitLate covers a session that opened between the look at it and the call's going live.
func (c *Client) resubmitLate(epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll()
	}
}

// waitFor waits for the end of a call, or of ctx, and gives the slot back.
func (c *Client) waitFor(ctx context.Context, p *call, in *Buffer) (Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		c.abandonCall(ctx, p)
		<-p.done
	}

	// The buffer is the caller's again before the call returns, whatever became of the request.
	in.withdrawOffer(p.reason == model.ReasonNone && p.resubmits == 0)
	in.busy.Store(false)

	// The slot is given back last: what is read of it here is overwritten by its next request.
	r, err := c.resultOf(p)
	c.pending.releaseSlot(p)
	return r, err
}

// resultOf is what a call that has ended came to.
func (c *Client) resultOf(p *call) (Result, error) {
	r := Result{Data: p.out, Exec: time.Duration(p.exec), Elapsed: time.Duration(p.end - p.start), Slack: time.Duration(p.deadline - p.end),
		Resubmits: int(p.resubmits), client: c, store: p.store}
	r.Stages = c.stagesOf(p, r.Elapsed)

	if p.reason != model.ReasonNone {
		c.stats.outcomes.Add(1)
		return r, &OutcomeError{Reason: p.reason, Model: p.model.Name, Budget: time.Duration(p.deadline - p.start),
			Elapsed: r.Elapsed, Local: p.local, Cause: p.cause}
	}

	// Of a family, the variant that answered is named.
	c.stats.answers.Add(1)
	by := c.answeredBy(p)
	r.model, r.Model, r.Version, r.Accuracy = p.model, by.Name, by.Version, by.Accuracy
	if p.holder != nil {
		return c.takeHeld(p, r)
	}
	return r, nil
}

// abandonCall ends a call whose caller's context has ended, unless an end is already on its way.
func (c *Client) abandonCall(ctx context.Context, p *call) {
	s := p.shard
	s.mu.Lock()
	if p.state != live {
		s.mu.Unlock()
		return
	}

	s.takeCall(p)
	id := p.id()
	s.mu.Unlock()

	p.local, p.cause = true, context.Cause(ctx)
	reason := model.Canceled
	if now := c.now(); now >= p.deadline {
		reason = model.DeadlineCannotBeMet
		if outage := c.whyUnheard(p); outage != nil {
			reason, p.cause = model.NoBackend, outage
		}
	}

	c.cancelRequest(id, p.service) // before the slot can be used again
	p.finishCall(reason, c.now())
}

// prepareInput runs the hook of a call that already queues, then lets backends read the input. If one
// has asked in vain meanwhile, the request is submitted again.
func (c *Client) prepareInput(p *call, r *Request) {
	err := r.Prepare(r.Input.Bytes())

	// The key is published before the lock: a backend may read the input from here on.
	if err == nil {
		r.Input.publishKey()
	}

	// The request may have ended while the hook ran; then there is nothing left to say.
	p.shard.mu.Lock()
	if p.state != live {
		p.shard.mu.Unlock()
		return
	}

	id := p.id()
	if err != nil {
		p.shard.takeCall(p)
		p.shard.mu.Unlock()
		p.local, p.cause = true, fmt.Errorf("prepare: %w", err)
		c.cancelRequest(id, p.service)
		p.finishCall(model.InputUnavailable, c.now())
		return
	}

	p.filling = false

	// A backend has read too early and failed meanwhile: the request is asked once more, now that its input is
	// there.
	if !p.again {
		p.shard.mu.Unlock()
		return
	}
	c.askAgain(p)
}

// askAgain submits a hooked request whose input a backend wanted before it was there. The shard is
// locked; askAgain unlocks it. If the session is lost, the next one takes the request up.
func (c *Client) askAgain(p *call) {
	p.again = false
	p.resubmits++
	again := []wire.Submit{{ID: p.id(), Model: p.service, Priority: p.priority, Budget: p.target - c.now(), Input: p.input}}
	p.shard.mu.Unlock()
	if again[0].Budget > 0 { // else the sweep ends it
		c.stats.resubmits.Add(1)
		_ = c.link.Load().Submit(again)
	}
}
