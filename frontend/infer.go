package frontend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

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
	c.expectInput(p, &r, 0)
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
	case m.isRefused():
		return nil, m.refusal()

	// Errors in the input.
	case r.Input == nil || r.Input.mem == nil || r.Input.of != &c.memory:
		return nil, fmt.Errorf("%w: model %q: input: a Buffer of this client that is not freed must be given", ErrInvalid, r.Model)
	case r.step != (m.Sequence != nil) || r.step == r.Sequence.IsZero():
		return nil, fmt.Errorf("%w: model %q: want Sequence of each request for a model that keeps sequences, with Do, and of no other", ErrInvalid, r.Model)
	case r.PrepareTime < 0 || r.PrepareTime > 0 && r.Prepare == nil:
		return nil, fmt.Errorf("%w: model %q: PrepareTime of %v: must be 0 or more, and 0 without Prepare", ErrInvalid, r.Model, r.PrepareTime)
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

// prepareInput runs the hook of a queued call, then lets backends read the input. If one has already tried in vain,
// the request is submitted again.
func (c *Client) prepareInput(p *call, r *Request) {
	began := time.Now()
	err := r.Prepare(r.Input.Bytes())
	c.hooks.note(r.Model, time.Since(began))

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

	switch {
	case p.held:
		p.held = false
		c.submitNow(p)
	case p.again: // a backend has read too early and failed
		c.askAgain(p)
	default:
		c.hasten(p)
	}
}

// askAgain resubmits a request whose input a backend wanted before the hook had filled it. The shard is locked;
// askAgain unlocks it.
func (c *Client) askAgain(p *call) {
	p.again = false
	p.resubmits++
	if c.submitNow(p) {
		c.stats.resubmits.Add(1)
	}
}

// submitNow submits a live request with its remaining budget; false: none remains, and the sweep ends the request. The
// shard is locked; submitNow unlocks it. If the session is lost, the next one takes over the request.
func (c *Client) submitNow(p *call) bool {
	epoch, now := p.epoch, c.now()
	all := []wire.Submit{{ID: p.id(), Model: p.service, Priority: p.priority, Budget: p.target - now, Input: p.input, ReadyIn: p.readyIn(now)}}
	p.shard.mu.Unlock()

	if all[0].Budget <= 0 {
		return false
	}
	_ = c.submitWithin(all, epoch)
	return true
}
