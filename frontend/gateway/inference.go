package gateway

import (
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe/spans"
	"downbeat.dev/frontend"
)

// Limits on what a client may request in one call.
const (
	rowsMax     = 1024
	tensorsMax  = 256
	dimsMax     = 16
	nameMax     = 1024 // bytes of a name, a version, a datatype or an id
	timeoutMax  = time.Hour
	classesMax  = 1 << 16
	priorityMax = 255
)

// inference is one call of a client, independent of the protocol.
type inference struct {
	model    *frontend.Model
	id       string
	timeout  time.Duration // 0: not given
	priority uint8
	floor    float64 // on accuracy; 0: not given
	sequence frontend.Sequence
	wanted   string  // the version that the client named; empty: none
	canary   *canary // the canary that chose the version; nil: none
	tried    bool    // the canary chose its version on trial
	rows     int
	batched  bool // shapes have the batch dimension, so the outputs' shapes do too
	inputs   []input
	outputs  []output
	binary   bool // REST: outputs are binary unless they say otherwise
	text     bool // REST: outputs that are not binary are written as JSON
	lent     bool // backends read rows from the client's region
	room     room

	span      *spans.Call // nil: the call is not traced
	regions   *regions    // regions in which inputs and outputs may lie
	memory    *memory     // counts the call's bytes; nil: they are not counted
	decoding  int64       // bytes that decoding the largest picture takes; 0: no input is a picture
	undecoded *fault      // of the first picture that could not be decoded

	taken int64 // bytes that memory counts for the call until reset
}

// takeBytes counts n bytes for the call.
func (in *inference) takeBytes(n int64) *fault {
	if !in.memory.takeBytes(n) {
		return errMemory
	}
	in.taken += n
	return nil
}

// giveBytes stops counting n bytes of the call.
func (in *inference) giveBytes(n int64) {
	in.memory.giveBytes(n)
	in.taken -= n
}

// room is further memory for serving a call; it is reused together with the inference.
type room struct {
	ordered  []input
	at, ends []int
	starts   []int
	calls    []frontend.Call
	raw      [][]byte
	shapes   []int64
	dims     []int64   // holds the shapes of all inputs given in JSON
	regions  []*region // that the call uses
}

// resetCall clears the call but keeps its memory.
func (in *inference) resetCall() {
	in.giveBytes(in.taken)

	r := &in.room
	for _, region := range r.regions {
		region.releaseRegion()
	}
	clear(r.regions)
	r.regions, r.dims = r.regions[:0], r.dims[:0]

	// Truncated without clearing, the arrays would keep the message's memory alive in the pool.
	clear(in.inputs)
	clear(in.outputs)
	clear(r.ordered)
	clear(r.calls)
	clear(r.raw)
	*in = inference{inputs: in.inputs[:0], outputs: in.outputs[:0], room: *r}
}

// keptRows and keptTensors bound the arrays that a pooled call keeps: some 10 KiB.
const (
	keptRows    = 64
	keptTensors = 32
)

// isLarge reports whether a call's arrays are too large to keep for the next call.
func (in *inference) isLarge() bool {
	r := &in.room
	return cap(r.calls) > keptRows || max(cap(in.inputs), cap(in.outputs), cap(r.ordered), cap(r.raw), cap(r.dims)/dimsMax) > keptTensors
}

// sizedZero returns s with n zero elements, in the same memory if it is large enough.
func sizedZero[T any](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// input is one tensor of a call, as the client described it.
type input struct {
	name     string
	datatype model.Datatype
	shape    []int64
	raw      []byte // elements of all rows, row-major, little-endian
	given    bool   // raw or place was set
	json     bool   // raw was parsed from JSON
	place    place  // where the elements lie in a client's shared memory, instead of raw
}

// bytes returns the number of bytes of an input's elements.
func (t *input) bytes() int {
	if t.place.of != nil {
		return int(t.place.size)
	}
	return len(t.raw)
}

// output is one tensor that the client requested.
type output struct {
	name    string
	index   int // in the model's outputs
	binary  bool
	chosen  bool  // the client set binary for this output
	classes int   // top classes instead of the tensor; 0: the tensor
	place   place // where to put it in the client's shared memory; unnamed: in the answer
}
