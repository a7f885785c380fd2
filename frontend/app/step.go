package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// startFirst runs the steps without predecessors. Each continues with the steps that wait for it.
func (r *run) startFirst(ctx context.Context) {
	var first []int
	for j := range r.app.steps {
		if len(r.app.steps[j].After) == 0 {
			first = append(first, j)
		}
	}

	// Add all steps at once, so that Wait cannot return between two steps.
	r.wait.Add(len(r.app.steps))
	r.proceed(ctx, first)
}

// proceed runs the ready steps, the first one on this goroutine, since most graphs are chains.
func (r *run) proceed(ctx context.Context, ready []int) {
	for len(ready) > 0 {
		for _, j := range ready[1:] {
			go r.proceed(ctx, []int{j})
		}

		j := ready[0]
		r.steps[j] = StepTrace{From: time.Since(r.begun)}
		err := r.runStep(ctx, j)
		r.steps[j].To = time.Since(r.begun)

		// Record the end before the next steps begin: they read which values are missing.
		r.endStep(j, err)
		ready = r.release(j)
		r.wait.Done()
	}
}

// release returns the steps whose last dependency was j.
func (r *run) release(j int) (ready []int) {
	var unheld []frontend.Result
	r.mu.Lock()
	defer func() {
		r.mu.Unlock()
		for i := range unheld {
			unheld[i].ReleaseHeld()
		}
	}()
	for _, before := range r.app.steps[j].After {
		// Backends have few slots, so release tensors as soon as no step reads them any more.
		if r.users[before]--; r.users[before] == 0 {
			unheld = append(unheld, r.made[before]...)
		}
	}
	for _, k := range r.app.steps[j].feeds {
		if r.needs[k]--; r.needs[k] == 0 {
			ready = append(ready, k)
		}
	}
	return ready
}

// errSkipped is the end of a step without inputs.
var errSkipped = errors.New("skipped")

// runStep runs a step after the steps that it needs have ended.
func (r *run) runStep(ctx context.Context, j int) error {
	s := &r.app.steps[j]

	// The cause is the failure of another step, if there was one.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, at := range s.In {
		if r.missing[at] {
			return errSkipped // the step is optional, else it could not need an optional tensor
		}
	}

	// A step with state takes a session's frames one by one. The wait may take all the time that the later steps can
	// spare.
	if r.stream != nil && (s.hook != nil || s.Sequence) {
		state := &r.stream.states[j]
		if err := state.takeTurn(ctx, r.deadline.Add(-r.app.rest[j])); err != nil {
			return r.endOfWait(ctx, j, err)
		}
		defer state.endTurn()
	}

	// A request that was dropped at the step's own deadline is sent again with the time that the later steps can
	// spare.
	offset := time.Duration(float64(r.offsets[j]) * r.scale)
	err := r.runUntil(ctx, j, r.deadline.Add(-offset))
	if s.hook == nil && r.app.rest[j] < offset && isDropped(err) && ctx.Err() == nil {
		r.steps[j].Again = true
		err = r.runUntil(ctx, j, r.deadline.Add(-r.app.rest[j]))
	}
	return err
}

// endOfWait returns the error of a step whose turn did not come in time, or whose frame ended meanwhile.
func (r *run) endOfWait(ctx context.Context, j int, err error) error {
	if ctx.Err() != nil && ctx.Err() != context.DeadlineExceeded {
		return err
	}

	err = fmt.Errorf("the session's frame before it is still there: %w", err)
	s := &r.app.steps[j]
	if s.hook != nil {
		return fmt.Errorf("%w: %w", ErrHook, err)
	}
	return &frontend.OutcomeError{Reason: model.DeadlineCannotBeMet, Model: s.Model, Local: true, Cause: err}
}

// runUntil runs a step with a deadline of its own.
func (r *run) runUntil(ctx context.Context, j int, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()

	if r.app.steps[j].hook != nil {
		return r.callHook(ctx, j)
	}
	return r.askStep(ctx, j)
}

// isDropped reports whether a request ended only for lack of time, or because its backend died.
func isDropped(err error) bool {
	var of *frontend.OutcomeError
	if !errors.As(err, &of) {
		return errors.Is(err, context.DeadlineExceeded)
	}

	return of.Reason == model.DeadlineCannotBeMet || of.Reason == model.DeadlinePast || of.Reason == model.BackendLost
}

// endStep counts how a step ended. A failed step ends the frame, unless it is optional.
func (r *run) endStep(j int, err error) {
	s := &r.app.steps[j]
	if err == nil {
		s.counts.answered.Add(1)
		return
	}

	// The later steps see that the outputs of the optional step are missing.
	r.steps[j].End = "failed"
	for _, at := range s.Out {
		if at != graph.Single {
			r.values[at], r.missing[at] = nil, true
		}
	}

	if errors.Is(err, errSkipped) {
		s.counts.skipped.Add(1)
		r.steps[j].End = "skipped"
		return
	}

	// A step that is canceled by another step's failure did not fail.
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		r.steps[j].End = "canceled"
		s.counts.canceled.Add(1)
	case s.Optional:
		s.counts.failed.Add(1)
	default:
		s.counts.failed.Add(1)
		r.err = fmt.Errorf("stage %q: %w", s.Name, err)

		// Cancel the other steps: the frame has failed.
		r.cancel(r.err)
	}
}
