package frontend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/model"
)

// The kinds of outcomes. An *OutcomeError matches one of them with errors.Is.
var (
	ErrDropped     = errors.New("dropped")     // no batch could meet the deadline
	ErrRejected    = errors.New("rejected")    // refused on arrival: queue full, unknown model, deadline past, floor too high
	ErrUnavailable = errors.New("unavailable") // no backend or no scheduler could be reached
	ErrCanceled    = errors.New("canceled")    // the caller's context ended
	ErrFailed      = errors.New("failed")      // the model failed, or its input was unavailable
)

// ErrClosed is returned by a closed Client.
var ErrClosed = errors.New("client closed")

// ErrInvalid marks arguments that are invalid without asking the scheduler, such as a nil buffer or one of the wrong
// size.
var ErrInvalid = errors.New("invalid request")

// OutcomeError says why a request got no output, with the relevant times.
type OutcomeError struct {
	Reason  Reason
	Model   string
	Budget  time.Duration // from the call to the deadline; 0 if it was refused before one was set
	Elapsed time.Duration // from the call to the outcome
	Local   bool          // decided by the client: no answer came in time, or the scheduler is not connected
	Cause   error         // the context's error, the hook's, or another explanation; may be nil
}

// Error returns kind, reason and times.
func (e *OutcomeError) Error() string {
	where := ""
	switch {
	case !e.Local || e.Cause != nil: // the cause tells more
	case e.Reason == model.DeadlinePast:
		where = " (before the request was sent)"
	default:
		where = " (no scheduler answered)"
	}

	text := fmt.Sprintf("model %q: %v: %s%s", e.Model, kindOf(e.Reason), e.Reason, where)
	if e.Budget != 0 {
		text += fmt.Sprintf(": budget %v, ended after %v", e.Budget.Round(time.Microsecond), e.Elapsed.Round(time.Microsecond))
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is matches the kind; a request that missed its deadline also matches context.DeadlineExceeded.
func (e *OutcomeError) Is(target error) bool {
	// To users of contexts, a deadline that could not be met is DeadlineExceeded.
	return target == kindOf(e.Reason) ||
		target == context.DeadlineExceeded && (e.Reason == model.DeadlineCannotBeMet || e.Reason == model.DeadlinePast)
}

// Unwrap returns the cause, if there is one.
func (e *OutcomeError) Unwrap() error { return e.Cause }

// kindOf returns a reason's kind.
func kindOf(r model.Reason) error {
	switch r {
	case model.DeadlineCannotBeMet:
		return ErrDropped
	case model.QueueFull, model.UnknownModel, model.DeadlinePast, model.FloorTooHigh:
		return ErrRejected
	case model.NoBackend, model.BackendLost:
		return ErrUnavailable
	case model.Canceled:
		return ErrCanceled
	}
	return ErrFailed
}
