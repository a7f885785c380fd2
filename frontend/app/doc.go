// Package app runs applications (core/app) over a frontend's client. One call of Run is one frame, from its inputs to the
// application's outputs, under one deadline.
//
// The deadline of a step's requests is the frame's deadline minus the step's offset, a constant, so that a later step can
// use the time that an earlier one did not need (UNIFIED U9). Steps run as soon as their inputs exist, in parallel where
// the graph allows it. A request without an output fails its frame and cancels the frame's other requests. If an optional
// step fails, only its outputs are missing.
//
// A Stream is a session: frames at a rate, each within a latency, with state that hooks keep between frames. A session
// without frames is closed when its lease ends.
//
// Invariants, cited by number in the tests:
//
//	A1  A frame ends once, and each of its steps is counted once: answered, failed, canceled or skipped.
//	A2  The memory of a frame's results is freed once, after Answer.Release or with the error.
//	A3  A hook that panics, or gives undeclared outputs, ends its frame with an error, and nothing else.
//
// An App and a Stream are safe for concurrent use; an Answer is not.
package app
