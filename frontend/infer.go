package frontend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Request is one inference. Model and Input must be set.
type Request struct {
	Model    string
	Version  string // empty: the newest that is ready
	Input    *Buffer
	Priority uint8 // higher is kept longer when not all can be served
	// Prepare, if set, fills the input while the request already queues. A backend that asks for
	// the input before Prepare has returned is refused, and the request is submitted again once it
	// has. An error ends the request with ErrFailed.
	Prepare func(input []byte) error
	// Output, if set and large enough, is where the output is copied to; it must not be touched
	// until the request has ended.
	Output []byte
}

// Result is the output of a request. Release gives its memory back; Data must not be used after.
type Result struct {
	Data      []byte        // tensors in the order of the model's outputs, without the batch dimension
	Exec      time.Duration // that the batch took on the GPU
	Elapsed   time.Duration // from the call to the output's arrival
	Slack     time.Duration // from the output's arrival to the deadline; negative: it came late, within Grace
	Resubmits int           // times that the request was sent again
	client    *Client
	store     *[]byte
}

// Release is for speed: without it the collector frees the memory. A second one on the same variable
// does nothing; a copy of a Result must not be released as well.
func (r *Result) Release() {
	if r.store != nil {
		r.client.results.put(r.store)
		r.store, r.Data = nil, nil
	}
}

// Infer asks for one inference and waits for its end, or ctx's. The deadline is ctx's, or the
// model's SLO from now. A request without an output ends in an *OutcomeError; an argument that
// cannot be right in an error that wraps ErrInvalid; a closed client answers ErrClosed.
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
	dst := b.Bytes()[:0]
	for _, in := range inputs {
		dst = append(dst, in...)
	}
	return c.Infer(ctx, model, b)
}

// Do is Infer with every option.
func (c *Client) Do(ctx context.Context, r Request) (Result, error) {
	p, err := c.begin(ctx, &r)
	if err != nil {
		return Result{}, err
	}
	if r.Prepare != nil {
		c.prepare(p, &r)
	}
	return c.wait(ctx, p, r.Input)
}

// DoAll begins all requests in one burst and waits for each. Results and errs must be as long as
// requests, and each request needs a Buffer of its own. A result counts where its error is nil.
func (c *Client) DoAll(ctx context.Context, requests []Request, results []Result, errs []error) {
	calls := make([]*call, len(requests))
	for i := range requests {
		calls[i], errs[i] = c.begin(ctx, &requests[i])
	}
	for i, p := range calls {
		if p == nil {
			continue
		}
		if requests[i].Prepare != nil {
			c.prepare(p, &requests[i])
		}
		results[i], errs[i] = c.wait(ctx, p, requests[i].Input)
	}
}

// check finds the request's model, and what of the request cannot be right.
func (c *Client) check(ctx context.Context, r *Request) (*Model, error) {
	m := c.Model(r.Model, r.Version)
	switch {
	case c.closed():
		return nil, ErrClosed
	case ctx.Err() == context.DeadlineExceeded:
		return nil, &OutcomeError{Reason: sched.DeadlinePast, Model: r.Model, Local: true}
	case ctx.Err() != nil:
		return nil, &OutcomeError{Reason: sched.Canceled, Model: r.Model, Local: true, Cause: context.Cause(ctx)}
	case m == nil && !c.Connected():
		return nil, &OutcomeError{Reason: sched.NoBackend, Model: r.Model, Local: true, Cause: errNoScheduler}
	case m == nil:
		return nil, &OutcomeError{Reason: sched.UnknownModel, Model: r.Model, Local: true, Cause: c.whyUnknown(r)}
	case r.Input == nil || r.Input.mem == nil || r.Input.of != &c.memory:
		return nil, fmt.Errorf("%w: model %q: input: a Buffer of this client that is not freed must be given", ErrInvalid, r.Model)
	case m.InputBytes >= 0 && r.Input.size != m.InputBytes:
		return nil, fmt.Errorf("%w: model %q: input of %d bytes: must be %d", ErrInvalid, r.Model, r.Input.size, m.InputBytes)
	case r.Output != nil && len(r.Output) < m.OutputBytes:
		return nil, fmt.Errorf("%w: model %q: output buffer of %d bytes: must be at least %d", ErrInvalid, r.Model, len(r.Output), m.OutputBytes)
	}
	return m, nil
}

// begin submits a request. The call that it returns must be waited for.
func (c *Client) begin(ctx context.Context, r *Request) (*call, error) {
	m, err := c.check(ctx, r)
	if err != nil {
		return nil, err
	}
	now, budget := c.now(), m.Deadline()
	if d, ok := ctx.Deadline(); ok {
		budget = time.Until(d)
	}
	if budget <= 0 {
		return nil, &OutcomeError{Reason: sched.DeadlinePast, Model: m.Name, Budget: budget, Local: true}
	}
	if !c.session.open.Load() && now-c.session.changed.Load() > int64(c.o.Reconnect) {
		return nil, &OutcomeError{Reason: sched.NoBackend, Model: m.Name, Budget: budget, Local: true, Cause: errNoScheduler}
	}
	if !r.Input.busy.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w: model %q: input: another request has this Buffer: each under way needs its own", ErrInvalid, r.Model)
	}
	p, first := c.pending.take(rand.Uint32())
	if p == nil {
		r.Input.busy.Store(false)
		return nil, &OutcomeError{Reason: sched.QueueFull, Model: m.Name, Budget: budget, Local: true,
			Cause: fmt.Errorf("%d requests are live, the limit of this client", c.o.LiveMax)}
	}
	c.stats.requests.Add(1)
	p.model, p.priority, p.start, p.deadline = m, r.Priority, now, now+int64(budget)
	if p.deadline < now { // a budget of centuries
		p.deadline = 1 << 62
	}
	p.target = p.deadline - min(c.margin.Load(), int64(budget)/marginShare)
	p.expire = p.deadline + int64(c.o.Grace)
	p.dst, p.local, p.exec = r.Output, false, 0
	p.hooked = r.Prepare != nil
	p.filling = p.hooked
	p.input = r.Input.offer(p.hooked)
	c.submit(p)
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	if c.closed() { // Close may have looked before the call was live
		c.fail(func(q *call) bool { return q == p }, sched.Canceled, ErrClosed)
	}
	return p, nil
}

// submit makes a call live and sends it. Without a session, or without the model, the call waits
// live for both; if the session is lost meanwhile, the next one takes the call up.
func (c *Client) submit(p *call) {
	epoch := c.session.epoch.Load()
	if !c.session.open.Load() || p.model.lostAt > 0 {
		c.left.Add(1)
		c.pending.arm(p, 0)
		c.resubmitLate(epoch)
		return
	}
	p.submit[0] = wire.Submit{Model: p.model.ID, Priority: p.priority, Budget: p.target - p.start, Input: p.input}
	id := c.pending.arm(p, epoch)
	p.submit[0].ID = id
	if c.session.epoch.Load() != epoch {
		return // the walk over earlier epochs takes it
	}
	link := c.link.Load()
	switch err := link.Submit(p.submit[:]); {
	case err == nil:
	case errors.Is(err, control.ErrUnavailable): // the event that tells so may be on its way
		c.left.Add(1)
		c.resubmitLate(epoch)
	default:
		if q := c.pending.claim(id); q != nil {
			q.local, q.cause = true, err
			q.finish(sched.NoBackend, c.now())
		}
	}
}

// resubmitLate covers a session that opened between the look at it and the call's going live.
func (c *Client) resubmitLate(epoch uint64) {
	if c.session.epoch.Load() != epoch {
		c.resubmitAll()
	}
}

// wait waits for the end of a call, or of ctx, and gives the slot back.
func (c *Client) wait(ctx context.Context, p *call, in *Buffer) (Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		c.abandon(ctx, p)
		<-p.done
	}
	in.withdraw(p.reason == sched.ReasonNone && p.resubmits == 0)
	in.busy.Store(false)
	r := Result{Data: p.out, Exec: time.Duration(p.exec), Elapsed: time.Duration(p.end - p.start), Slack: time.Duration(p.deadline - p.end),
		Resubmits: int(p.resubmits), client: c, store: p.store}
	var err error
	if p.reason != sched.ReasonNone {
		c.stats.outcomes.Add(1)
		err = &OutcomeError{Reason: p.reason, Model: p.model.Name, Budget: time.Duration(p.deadline - p.start),
			Elapsed: r.Elapsed, Local: p.local, Cause: p.cause}
	} else {
		c.stats.answers.Add(1)
	}
	c.pending.release(p)
	return r, err
}

// abandon ends a call whose caller's context has ended, unless an end is already on its way.
func (c *Client) abandon(ctx context.Context, p *call) {
	s := p.shard
	s.mu.Lock()
	if p.state != live {
		s.mu.Unlock()
		return
	}
	s.take(p)
	id := p.id()
	s.mu.Unlock()
	p.local, p.cause = true, context.Cause(ctx)
	reason := sched.Canceled
	if now := c.now(); now >= p.deadline {
		reason = sched.DeadlineCannotBeMet
	}
	c.cancel(id, p.model) // before the slot can be used again
	p.finish(reason, c.now())
}

// prepare runs the hook of a call that already queues, then lets backends read the input. If one
// has asked in vain meanwhile, the request is submitted again.
func (c *Client) prepare(p *call, r *Request) {
	err := r.Prepare(r.Input.Bytes())
	if err == nil {
		r.Input.publish()
	}
	p.shard.mu.Lock()
	if p.state != live {
		p.shard.mu.Unlock()
		return
	}
	id := p.id()
	if err != nil {
		p.shard.take(p)
		p.shard.mu.Unlock()
		p.local, p.cause = true, fmt.Errorf("prepare: %w", err)
		c.cancel(id, p.model)
		p.finish(sched.InputUnavailable, c.now())
		return
	}
	p.filling = false
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
	again := []wire.Submit{{ID: p.id(), Model: p.model.ID, Priority: p.priority, Budget: p.target - c.now(), Input: p.input}}
	p.shard.mu.Unlock()
	if again[0].Budget > 0 { // else the sweep ends it
		c.stats.resubmits.Add(1)
		_ = c.link.Load().Submit(again)
	}
}
