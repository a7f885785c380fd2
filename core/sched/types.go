package sched

import (
	"math"

	vocabulary "downbeat.dev/core/model"
)

// Time is nanoseconds on this node's monotonic clock; never wall time.
type Time int64

// Duration is a span of Time in nanoseconds.
type Duration int64

// Never is later than every Time; a timer set to Never is off.
const Never Time = math.MaxInt64

// Add returns t+d, saturating at Never.
func (t Time) Add(d Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Sub returns t-u.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// ModelID numbers a model within one scheduler.
type ModelID uint32

// GPUID numbers a GPU within one scheduler.
type GPUID uint32

// RequestID identifies a live request among those of its origin. The driver chooses it; two live requests of one
// origin never share one.
type RequestID uint64

// BatchID identifies a dispatched batch; it is never reused within one scheduler's life.
type BatchID uint64

// Priority orders requests of one model when not all can be served: higher ones are kept longer.
type Priority uint8

// Request is one inference as the scheduler sees it, without tensor or address. The driver's fields are carried along
// and not read here. It takes three quarters of a cache line.
type Request struct {
	ID       RequestID
	Deadline Time                  // the latest useful end of its batch, on this node's clock
	Input    vocabulary.Descriptor // the driver's
	Due      uint32                // the driver's
	Origin   uint32                // whose ID it is
	Model    ModelID
	Priority Priority
	Flags    uint8  // the driver's
	Avoid    Groups // it joins no batch on a GPU of these groups
}

// Batch is the order to run requests of one model on one GPU at ExecAt. The requests are valid until the outputs are
// reset, unless Keep is called.
type Batch struct {
	ID       BatchID
	Model    ModelID
	Variant  uint16 // the service's variant that answers
	GPU      GPUID
	Epoch    uint32 // the GPU's life: if the id now has another, the driver must not send the batch
	ExecAt   Time   // when the batch is to start on the GPU
	Latest   Time   // a later start misses the earliest deadline in the batch
	Finish   Time   // ExecAt + ℓ(len(Requests))
	Requests []Request
	piece    []Request // the memory of the requests
}

// Keep hands the requests and their memory to the driver, until the driver passes Keep's result to Partition.Release.
func (b *Batch) Keep() []Request {
	piece := b.piece
	b.piece = nil
	return piece
}

// Drop reports a request that ended without an output.
type Drop struct {
	Request
	Reason vocabulary.Reason
	Rule   DropRule // if Reason is DeadlineCannotBeMet: the rule that decided it
}

// DropRule is the rule that decided that a queued request's deadline could not be met.
type DropRule uint8

const (
	Expired    DropRule = iota // no GPU came while a batch of one could still meet the deadline
	Windowed                   // dropped at a grant, so that the requests behind it are answered in time
	LeftBehind                 // the batches that it allowed were too small to keep up with the load (decision 0230)
)
