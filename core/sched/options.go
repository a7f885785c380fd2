package sched

import "errors"

// Limits and defaults.
const (
	IDLimit         = 1 << 20          // model and GPU ids are below this: tables are dense
	SubClusterLimit = 1 << 16          // sub-cluster numbers are below this
	QueueMaxDefault = 1 << 16          // queued requests per model
	SLOLimit        = 3600_000_000_000 // an hour in ns
	RateLimit       = 1e9              // requests/s of one model
)

// Errors of the management calls, wrapped with the invalid number.
var (
	ErrKnown   = errors.New("already known")
	ErrUnknown = errors.New("unknown")
)

// Options configure a Partition, a Ranker or a Scheduler.
type Options struct {
	// Number is the partition's number within its engine. It makes BatchIDs unique: they are Number<<40 + 1, 2, 3…
	Number uint16
	// Ctrl and Data are d_ctrl and d_data (appendix C): a batch of b must be sent Ctrl + b·Data
	// before it starts.
	Ctrl, Data Duration
	// Prompt is the demand, as a share of a sub-cluster's GPUs, below which a candidate gets an idle GPU at once
	// instead of waiting to grow: while GPU time is plentiful, answers come early and survive a stall of the host. 0:
	// always defer, which keeps the busy fraction proportional to load (§4.4).
	Prompt float64
	// Memory allocates a Partition's memory for n requests, a power of two, with arbitrary content; the Partition
	// keeps it. nil: the heap.
	Memory func(n int) []Request
}
