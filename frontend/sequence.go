package frontend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/model"
)

// Sequence identifies a request as a step of a sequence, for a model that keeps sequences. The steps of a sequence
// run one after another, in the order of the calls; each starts from the state that the previous one left. The client
// keeps the state, so a step may run on any GPU, but all steps of a sequence must use one client.
type Sequence struct {
	ID    uint64 // 0: use Name
	Name  string // if ID is 0; at most 128 bytes
	Start bool   // the first step; without it the sequence must exist
	End   bool   // the last step
}

// IsZero reports whether the request belongs to no sequence.
func (s Sequence) IsZero() bool { return s == Sequence{} }

// String returns the sequence's name for errors.
func (s Sequence) String() string {
	if s.ID != 0 {
		return fmt.Sprint(s.ID)
	}
	return s.Name
}

// doStep is Do for a step of a sequence.
func (c *Client) doStep(ctx context.Context, r Request) (Result, error) {
	m := c.Model(r.Model, r.Version)
	if m == nil {
		return Result{}, c.refuseUnknown(&r)
	}
	if err := checkStep(m, &r); err != nil {
		return Result{}, err
	}

	key := sequenceKey{r.Model, r.Version, r.Sequence.ID, r.Sequence.Name}
	s, err := c.sequences.joinSequence(key, m, r.Sequence.Start, c.now())
	if err != nil {
		return Result{}, err
	}

	if err := c.takeTurn(ctx, s, &r); err != nil {
		c.sequences.leaveSequence(key, s, false, c.now())
		return Result{}, err
	}
	if s.ended {
		<-s.turn
		c.sequences.leaveSequence(key, s, false, c.now())
		return Result{}, missingStart(&r)
	}

	result, err := c.askStep(ctx, s, r)

	// A failed step leaves the state unchanged, so that it may be repeated; a failed first step leaves no sequence.
	over := err == nil && r.Sequence.End || err != nil && (r.Sequence.Start || s.ended)
	s.ended = s.ended || over
	c.sequences.leaveSequence(key, s, over, c.now())
	<-s.turn
	return result, err
}

// takeTurn waits until the earlier steps have ended. Waiting senders of a channel proceed in order.
func (c *Client) takeTurn(ctx context.Context, s *sequence, r *Request) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}

	began := c.now()
	select {
	case s.turn <- struct{}{}:
		// The turn may come at the moment at which the context ends.
		if ctx.Err() == nil {
			return nil
		}
		<-s.turn
	case <-ctx.Done():
	}
	return c.endOfWait(ctx, r, began, "the step before it has not ended")
}

// endOfWait returns the outcome of a step whose context ended while it waited for its sequence, since began.
func (c *Client) endOfWait(ctx context.Context, r *Request, began int64, why string) *OutcomeError {
	waited := time.Duration(c.now() - began)
	e := &OutcomeError{Reason: model.Canceled, Model: r.Model, Elapsed: waited, Local: true, Cause: fmt.Errorf("sequence %v: %s: %w", r.Sequence, why, context.Cause(ctx))}
	if ctx.Err() != context.DeadlineExceeded {
		return e
	}

	// Without a scheduler, the step that it waited for could not end.
	e.Reason = model.DeadlineCannotBeMet
	if !c.session.open.Load() {
		e.Reason, e.Cause = model.NoBackend, errNoScheduler
	}
	if at, ok := ctx.Deadline(); ok {
		e.Budget = waited + time.Until(at)
	}
	return e
}

// checkStep refuses an invalid step.
func checkStep(m *Model, r *Request) error {
	switch {
	case m.Sequence == nil:
		return fmt.Errorf("%w: model %q: sequence %v: the model keeps no sequences", ErrInvalid, m.Name, r.Sequence)
	case r.Sequence.ID == 0 && r.Sequence.Name == "":
		return fmt.Errorf("%w: inference request to model '%s' must specify a non-zero or non-empty correlation ID", ErrInvalid, m.Name)
	case r.Sequence.ID != 0 && r.Sequence.Name != "" || len(r.Sequence.Name) > sequenceNameMax:
		return fmt.Errorf("%w: model %q: sequence %d, %.40q: want a number, or a name of at most %d bytes", ErrInvalid, m.Name, r.Sequence.ID, r.Sequence.Name, sequenceNameMax)
	case r.Prepare != nil || r.Parts != nil || r.Hold != 0:
		return fmt.Errorf("%w: model %q: Prepare, Parts, Hold: a step's input must be there, and in one piece", ErrInvalid, m.Name)
	case r.Input == nil || r.Input.mem == nil || r.Input.size != m.InputBytes:
		return fmt.Errorf("%w: model %q: input: want a Buffer of %d bytes", ErrInvalid, m.Name, m.InputBytes)
	case r.Input.isLent(): // a step's input is copied next to its state
		return refuseLent(m)
	case r.Output != nil && len(r.Output) < m.OutputBytes:
		return fmt.Errorf("%w: model %q: output buffer of %d bytes: must be at least %d", ErrInvalid, m.Name, len(r.Output), m.OutputBytes)
	}
	return nil
}

// missingStart is Triton's error for a step without a sequence: it never started, has ended, or was idle for too
// long.
func missingStart(r *Request) error {
	return fmt.Errorf("%w: inference request for sequence %v to model '%s' must specify the START flag on the first request of the sequence", ErrInvalid, r.Sequence, r.Model)
}

// The state belongs to one version: another may give the same tensors another meaning.
func (c *Client) askStep(ctx context.Context, s *sequence, r Request) (Result, error) {
	// The state is of one version: another one may mean other things by the same tensors.
	m := c.Model(r.Model, s.of.Version)
	newest := c.Model(r.Model, r.Version)
	if m == nil || m.fullInput != s.of.fullInput || m.fullOutput != s.of.fullOutput || m.Sequence == nil ||
		!m.Ready && newest != nil && newest.Ready && newest.Version != m.Version {
		s.ended = true
		return Result{}, fmt.Errorf("%w: sequence %v of model '%s': its state is of version %s, which is not served any more: it must begin anew", ErrInvalid, r.Sequence, r.Model, s.of.Version)
	}

	output := r.Output
	r.Version, r.Output, r.step = m.Version, nil, true
	result, err := c.runStep(ctx, s, m, r)
	if err != nil {
		return result, err
	}

	if err := c.keepState(s, m, &result, r.Sequence.End); err != nil {
		result.Release()
		return Result{}, &OutcomeError{Reason: model.ExecutionFailed, Model: m.Name, Local: true, Cause: err}
	}
	if output != nil {
		result.Data = output[:copy(output, result.Data)]
	}
	return result, nil
}

// If the state is being fetched, wait for it: its backend releases it afterwards.
func (c *Client) runStep(ctx context.Context, s *sequence, m *Model, r Request) (Result, error) {
	// A state that is on its way here is waited for: its backend gives it up then.
	if s.held != nil && s.held.begun.Load() {
		if err := c.bringState(ctx, s, &r); err != nil {
			return Result{}, err
		}
	}

	// If the backend cannot read the held state, fetch it and request the step once more.
	if hold := m.largeStates(c.o.HoldBytes); hold != 0 && c.now() >= c.sequences.plain.Load() {
		result, err := c.runComposed(ctx, s, m, r, hold)
		var of *OutcomeError
		if !errors.As(err, &of) || of.Reason != model.InputUnavailable {
			return result, err
		}
		if s.held == nil {
			c.sequences.plain.Store(c.now() + int64(plainAfter))
		}
	}
	if err := c.bringState(ctx, s, &r); err != nil {
		return Result{}, err
	}

	// The caller's buffer has no room after its tensors.
	in, err := c.Buffer(m.fullInput)
	if err != nil {
		return Result{}, err
	}
	defer in.Free()
	n := copy(in.Bytes(), r.Input.Bytes())
	hidden, err := s.hiddenInputs(m, &r)
	if err != nil {
		return Result{}, err
	}
	for _, part := range hidden {
		n += copy(in.Bytes()[n:], part.Data)
	}

	r.Input = in
	return c.Do(ctx, r)
}
