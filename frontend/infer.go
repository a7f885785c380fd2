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

// Infer requests one inference and waits for its end, or ctx's. The deadline is ctx's, or the model's SLO from now;
// with SLOBinds the earlier of the two. A request without an output returns an *OutcomeError, an invalid argument an
// error that wraps ErrInvalid, a closed client ErrClosed.
func (c *Client) Infer(ctx context.Context, model string, in *Buffer) (Result, error) {
	return c.Do(ctx, Request{Model: model, Input: in})
}

// InferCopy is Infer for tensors in ordinary memory, in the order of the model's inputs. It copies them to a
// registered buffer.
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

	// The tensors lie one after another, as in the model's layout.
	dst := b.Bytes()[:0]
	for _, in := range inputs {
		dst = append(dst, in...)
	}
	return c.Infer(ctx, model, b)
}

// Do is Infer with all options.
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

	// Prepare runs while the request is queued.
	if r.Prepare != nil {
		c.prepareInput(p, &r)
	}
	return c.waitFor(ctx, p, r.Input)
}

// checkRequest finds the request's model and refuses an invalid request.
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

	// First the reasons that end any request to the model, then the errors in the input, which the caller can
	// correct.
	switch {
	case c.closed():
		return nil, ErrClosed
	case ctx.Err() == context.DeadlineExceeded:
		return nil, &OutcomeError{Reason: model.DeadlinePast, Model: r.Model, Local: true}
	case ctx.Err() != nil:
		return nil, &OutcomeError{Reason: model.Canceled, Model: r.Model, Local: true, Cause: context.Cause(ctx)}
	case m == nil:
		return nil, c.refuseUnknown(r)
	case m.Reason != "" && len(m.Inputs) == 0: // the announcement has no tensors, only the reason why it is not served
		return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Local: true, Cause: errors.New(m.Reason)}
	case r.Input == nil || r.Input.mem == nil || r.Input.of != &c.memory:
		return nil, fmt.Errorf("%w: model %q: input: a Buffer of this client that is not freed must be given", ErrInvalid, r.Model)
	case r.step != (m.Sequence != nil) || r.step == r.Sequence.IsZero():
		return nil, fmt.Errorf("%w: model %q: want Sequence of each request for a model that keeps sequences, with Do, and of no other", ErrInvalid, r.Model)
	case r.composed: // its parts are checked one by one
	case m.fullInput >= 0 && r.Input.size != m.fullInput:
		return nil, fmt.Errorf("%w: model %q: input of %d bytes: must be %d", ErrInvalid, r.Model, r.Input.size, m.fullInput)
	case m.InputMax > 0 && r.Input.size > int(m.InputMax):
		return nil, fmt.Errorf("%w: model %q: input of %d bytes: must be at most %d (parameter bytes_max of its configuration)", ErrInvalid, r.Model, r.Input.size, m.InputMax)
	case r.Output != nil && len(r.Output) < m.OutputBytes:
		return nil, fmt.Errorf("%w: model %q: output buffer of %d bytes: must be at least %d", ErrInvalid, r.Model, len(r.Output), m.OutputBytes)
	}
	return m, nil
}

// refuseLent refuses memory of another process where this client must read it, as it may change or vanish.
func refuseLent(m *Model) error {
	return fmt.Errorf("%w: model %q: input: bytes of another process (Lend): must be a Buffer of the client's own, for the model has texts, open dimensions or sequences", ErrInvalid, m.Name)
}

// beginCall takes a slot for a request and fills it. The returned call must be submitted and waited for.
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

	// New requests do not wait for a scheduler that has been away for long.
	if !c.session.open.Load() && now-c.session.changed.Load() > int64(c.o.Reconnect) {
		return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Budget: budget, Local: true, Cause: errNoScheduler}
	}

	// Backends read the buffer directly, so two requests cannot share it.
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

	// From here on backends may read the input; if a hook still fills it, it has only a reserved descriptor.
	p.input = r.Input.offerInput(p.hooked)
	if r.composed {
		p.input = p.input.In(model.Composed)
	}

	// The sweep sleeps while no request is live; the first one wakes it.
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return p, nil
}

// endIfClosed ends a submitted call if the client is closed: Close may have run before the call was live.
func (c *Client) endIfClosed(p *call) {
	if c.closed() {
		c.failCalls(func(q *call) bool { return q == p }, model.Canceled, ErrClosed)
	}
}

// budgetOf returns the budget of a request: until its context's deadline, or else the model's SLO.
func (m *Model) budgetOf(ctx context.Context) time.Duration {
	budget := m.Deadline()
	if d, ok := ctx.Deadline(); ok {
		// With SLOBinds, a generous deadline that callers set out of habit does not extend the SLO.
		if asked := time.Until(d); asked < budget || !m.SLOBinds {
			budget = asked
		}
	}
	return budget
}

// takeRequest writes a request to its slot.
func (p *call) takeRequest(r *Request, m *Model, service uint32) {
	p.model, p.service, p.floor, p.priority = m, service, r.AccuracyFloor, r.Priority
	p.dst, p.newest = r.Output, r.Newest || r.Version == ""
	p.hooked = r.Prepare != nil
	p.filling = p.hooked
	p.holds, p.holder = r.Hold != 0 && r.composed, nil

	p.local, p.answer, p.exec, p.staged = false, 0, 0, false
}

// setTimes sets the start of a request and the three moments at which it may end.
func (c *Client) setTimes(p *call, now int64, budget time.Duration) {
	p.start, p.deadline = now, now+int64(budget)
	if p.deadline < now { // overflow: a budget of centuries
		p.deadline = 1 << 62
	}

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
	s := wire.Submit{Model: p.service, Priority: p.priority, Budget: p.target - p.start, Input: p.input}
	s.ID = c.pending.armCall(p, epoch)
	return s
}

// sendSubmits sends requests to the scheduler. If that fails, they end or wait for the next session.
func (c *Client) sendSubmits(all []wire.Submit, epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll() // the new session may have looked for earlier calls before these were live
		return
	}

	err := c.link.Load().Submit(all)
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

// submitCall makes a call live and sends it. Without a session, or without the model, the call waits live for both.
// If the session is lost meanwhile, the next one takes over the call.
func (c *Client) submitCall(p *call) { c.submitIn(p, c.session.epoch.Load()) }

// submitIn is submitCall for the session of an epoch; another one may have opened since.
func (c *Client) submitIn(p *call, epoch uint64) {
	if c.mustWait(p) {
		c.leaveCall(p, epoch)
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

// resubmitLate covers a session that opened after it was checked and before the call was live.
func (c *Client) resubmitLate(epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll()
	}
}

// waitFor waits for the end of a call, or of ctx, and releases the slot.
func (c *Client) waitFor(ctx context.Context, p *call, in *Buffer) (Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		c.abandonCall(ctx, p)
		<-p.done
	}

	// The buffer belongs to the caller again before the call returns, whatever the outcome.
	in.withdrawOffer(p.reason == model.ReasonNone && p.resubmits == 0)
	in.busy.Store(false)

	// The slot is released last: its next request overwrites it.
	r, err := c.resultOf(p)
	c.pending.releaseSlot(p)
	return r, err
}

// resultOf returns the result of a call that has ended.
func (c *Client) resultOf(p *call) (Result, error) {
	r := Result{Data: p.out, Exec: time.Duration(p.exec), Elapsed: time.Duration(p.end - p.start), Slack: time.Duration(p.deadline - p.end),
		Resubmits: int(p.resubmits), client: c, store: p.store}
	r.Stages = c.stagesOf(p, r.Elapsed)

	if p.reason != model.ReasonNone {
		c.stats.outcomes.Add(1)
		return r, &OutcomeError{Reason: p.reason, Model: p.model.Name, Budget: time.Duration(p.deadline - p.start),
			Elapsed: r.Elapsed, Local: p.local, Cause: p.cause}
	}

	// For a family, name the variant that answered.
	c.stats.answers.Add(1)
	by := c.answeredBy(p)
	r.model, r.Model, r.Version, r.Accuracy = p.model, by.Name, by.Version, by.Accuracy
	if p.holder != nil {
		return c.takeHeld(p, r)
	}
	return r, nil
}

// abandonCall ends a call whose context has ended, unless an end is already on its way.
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

	c.cancelRequest(id, p.service) // before the slot can be reused
	p.finishCall(reason, c.now())
}

// prepareInput runs the hook of a queued call, then lets backends read the input. If one has already tried in vain,
// the request is submitted again.
func (c *Client) prepareInput(p *call, r *Request) {
	err := r.Prepare(r.Input.Bytes())

	// The key is published before the lock: from here on a backend may read the input.
	if err == nil {
		r.Input.publishKey()
	}

	// The request may have ended while the hook ran: then there is nothing left to do.
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

	// A backend has read too early and failed: submit the request again, now that its input is ready.
	if !p.again {
		p.shard.mu.Unlock()
		return
	}
	c.askAgain(p)
}

// askAgain resubmits a request whose input a backend wanted before the hook had filled it. The shard is locked;
// askAgain unlocks it. If the session is lost, the next one takes over the request.
func (c *Client) askAgain(p *call) {
	p.again = false
	p.resubmits++
	again := []wire.Submit{{ID: p.id(), Model: p.service, Priority: p.priority, Budget: p.target - c.now(), Input: p.input}}
	p.shard.mu.Unlock()
	if again[0].Budget > 0 { // otherwise the sweep ends it
		c.stats.resubmits.Add(1)
		_ = c.link.Load().Submit(again)
	}
}
