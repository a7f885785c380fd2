package frontend

import (
	"context"
	"time"

	"downbeat.dev/core/model"
)

// waitFor waits for the end of a call, or of ctx, and releases the slot.
func (c *Client) waitFor(ctx context.Context, p *call, in *Buffer) (Result, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		c.abandonCall(ctx, p)
		<-p.done
	}

	// The buffer belongs to the caller again before the call returns, whatever the outcome.
	in.withdrawOffer(p.reason == model.ReasonNone && p.resubmits == 0 && !p.hastened)
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
