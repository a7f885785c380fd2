// Package app runs applications (core/app) over a frontend's client: one call of Run is one frame, from its inputs to
// the application's outputs, under one deadline.
//
// A step's requests have the frame's deadline less the step's offset, a constant, so that time which an earlier step
// did not use is a later one's (UNIFIED U9). Steps run as soon as what they need is there, side by side where the
// graph allows it. When a request of a step ends without an output the frame has no answer any more: whatever else
// runs for it is cancelled. An optional step leaves its outputs out instead.
//
// A Stream is a session: frames at a rate, each within a latency, with state that hooks keep from frame to frame. One
// that is not used for its lease is closed.
//
// Invariants, cited by number in the tests:
//
//	A1  A frame ends once, and every step of it is counted once: answered, failed, canceled or skipped.
//	A2  Memory that a frame's results lie in is given back once, after Answer.Release or with the error.
//	A3  A hook that panics, or gives what it did not declare, ends its frame with an error, and nothing else.
//
// An App and a Stream may be used by any number of goroutines; an Answer belongs to one.
package app
