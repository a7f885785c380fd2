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
	ErrRejected    = errors.New("rejected")    // refused on arrival: queue full, unknown model, deadline past, no answer accurate enough
	ErrUnavailable = errors.New("unavailable") // no backend or no scheduler could be asked
	ErrCanceled    = errors.New("canceled")    // the caller's context ended
	ErrFailed      = errors.New("failed")      // the model failed, or its input could not be had
)

// ErrClosed is what a closed Client answers.
var ErrClosed = errors.New("client closed")

// ErrInvalid marks arguments that no scheduler needs to see: a nil or misfitting buffer.
var ErrInvalid = errors.New("invalid request")

// OutcomeError says why a request got no output, with the numbers that explain it.
type OutcomeError struct {
	Reason  Reason
	Model   string
	Budget  time.Duration // from the call to the deadline; 0 where it was refused before one was set
	Elapsed time.Duration // from the call to the outcome
	Local   bool          // decided here: nobody answered in time, or the scheduler is not connected
	Cause   error         // the context's error, the hook's, or what else explains it; may be nil
}

// Error tells kind, reason and numbers.
func (e *OutcomeError) Error() string {
	where := ""
	if e.Local {
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

// Is matches the kind; a request that ended by its deadline also matches context.DeadlineExceeded.
func (e *OutcomeError) Is(target error) bool {
	// A deadline that could not be met is what callers of contexts know as DeadlineExceeded.
	return target == kindOf(e.Reason) ||
		target == context.DeadlineExceeded && (e.Reason == model.DeadlineCannotBeMet || e.Reason == model.DeadlinePast)
}

// Unwrap returns the cause, if there is one.
func (e *OutcomeError) Unwrap() error { return e.Cause }

// kindOf sorts a reason into one of the five kinds.
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
