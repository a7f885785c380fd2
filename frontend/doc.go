// Package frontend is the library with which applications request inferences under deadlines. A Client submits
// descriptors to the scheduler, lets backends read the inputs directly from its registered buffers, and completes
// each caller with the output that a backend sent or with the reason why there is none. It does not schedule, and no
// tensor passes the scheduler.
//
// Words: a request is one inference; its deadline is the context's, or the model's SLO from now; an outcome is an end
// without an output, reported as an *OutcomeError that errors.Is compares with ErrDropped, ErrRejected,
// ErrUnavailable, ErrCanceled and ErrFailed.
//
// Invariants, cited by number in the tests:
//
//	I1  Every request ends exactly once: by an output, an outcome, its caller's context, or by the
//	    sweep at its deadline plus Grace. No caller waits for ever, whichever process dies.
//	I2  An answer is matched by slot and generation: a late or duplicate answer, or one for a request
//	    that has ended, has no effect.
//	I3  A request's Result is written before its caller wakes, and belongs to the caller after.
//	I4  The input buffer belongs to the caller before and after Infer; in between backends read it.
//	    When Infer returns, no read of it is in progress and none can begin.
//	I5  No code holds two locks of this package, and none while it calls out.
//
// Concurrency: a Client's methods may be called by any number of goroutines. A Buffer and a Result belong to one
// goroutine at a time. Infer allocates nothing after warm-up, except the error of a request that got no output.
package frontend
