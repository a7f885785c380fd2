// Package cuda drives one GPU, or an emulated one, behind one API: streams, events, device memory, pinned host
// memory, kernels, captured graphs, and submissions that pass a whole batch to C in one cgo call. It does not know of
// models, requests or the network. Packages layers and executor build models on it, residency decides what stays in
// device memory, and backend/accel overlaps copies and compute.
//
// Words: a Device owns everything opened from it. A Submission is a list of commands (copy, fill, launch, record,
// wait, graph) built in Go and enqueued by one call of Device.Submit. A Slab is host memory from the pinned pool. A
// Memory is device memory.
//
// Invariants, which the tests cite:
//
//	I1  After Close every count of Device.Live is zero, or Close returns an error naming what leaked.
//	I2  After a sticky code every call returns that code until Close, and enqueues nothing.
//	I3  Commands of one stream complete in order. Wait(stream, event) orders a stream after the
//	    latest Record of that event that was submitted before it.
//	I4  A slab is never in use twice, and at most PinnedBytesMax of them are pinned.
//	I5  No wait is unbounded: Wait ends with its context, whatever the device does.
//	I6  Submit allocates nothing once its Submission has grown to the batch's size.
//
// Concurrency: a Device and its pools may be used by any goroutine. A Submission belongs to one goroutine at a time.
// Memory named by a submitted command must stay allocated until that command is done; freeing a Memory in use is a
// use after free, which the emulated device reports as CodeIllegalAddress.
//
// Without the build tag cuda, or on a host without a driver, Open returns ErrNotSupported and only OpenEmulated
// works.
package cuda
