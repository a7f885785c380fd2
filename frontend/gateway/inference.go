package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe/spans"
	"downbeat.dev/frontend"
)

// Limits on what a client can ask for in one call.
const (
	rowsMax     = 1024
	tensorsMax  = 256
	dimsMax     = 16
	timeoutMax  = time.Hour
	classesMax  = 1 << 16
	priorityMax = 255
)

// inference is one call of a client, protocol aside.
type inference struct {
	model    *frontend.Model
	id       string
	timeout  time.Duration // 0: none was given
	priority uint8
	floor    float64 // on accuracy; 0: none was given
	sequence frontend.Sequence
	wanted   string  // the version that the client named; empty: none
	canary   *canary // that chose the version; nil: none
	tried    bool    // it chose the version that it tries
	rows     int
	batched  bool // shapes carry the batch dimension, so the outputs' do too
	inputs   []input
	outputs  []output
	binary   bool // REST: outputs that do not say otherwise are binary
	text     bool // REST: outputs that are not binary are written as JSON
	lent     bool // backends read rows from the client's region
	room     room

	span    *spans.Call // nil: nobody traces
	regions *regions    // that inputs and outputs may lie in
	memory  *memory     // counts what the call takes; nil: nobody does
	taken   int64       // bytes that memory counts for it until reset
}

// takeBytes counts n bytes for the call.
func (in *inference) takeBytes(n int64) *fault {
	if !in.memory.takeBytes(n) {
		return errMemory
	}
	in.taken += n
	return nil
}

// giveBytes counts n bytes of the call no more.
func (in *inference) giveBytes(n int64) {
	in.memory.giveBytes(n)
	in.taken -= n
}

// room is what serving a call needs besides; it is used again with the inference.
type room struct {
	ordered  []input
	at, ends []int
	starts   []int
	calls    []frontend.Call
	raw      [][]byte
	shapes   []int64
	dims     []int64   // of the shapes of all inputs that JSON gave
	regions  []*region // that the call uses
}

// resetCall forgets a call but keeps its memory.
func (in *inference) resetCall() {
	in.giveBytes(in.taken)

	r := &in.room
	for _, region := range r.regions {
		region.releaseRegion()
	}
	clear(r.regions)
	r.regions, r.dims = r.regions[:0], r.dims[:0]

	// Cut to nothing alone, the arrays would keep the message's memory alive in the pool.
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

// isLarge tells whether a call's arrays have grown too large to be kept for the next call.
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
	given    bool   // raw was set, or place
	place    place  // where a client's shared memory has the elements instead of raw
}

// bytes is how many bytes of elements an input has.
func (t *input) bytes() int {
	if t.place.of != nil {
		return int(t.place.size)
	}
	return len(t.raw)
}

// output is one tensor that the client asked for.
type output struct {
	name    string
	index   int // in the model's outputs
	binary  bool
	chosen  bool  // binary was said for this output
	classes int   // top classes instead of the tensor; 0: the tensor
	place   place // where the client's shared memory has room for it; unnamed: in the answer
}

// resolveModel finds a model by the name and version that a client gave.
func (g *Gateway) resolveModel(ctx context.Context, name, version string) (*frontend.Model, *fault) {
	// Before anything is looked up: whether a model is there is told to those only who may use it.
	c := clientOf(ctx)
	if f := clientFault(c, c.CheckModel(name)); f != nil {
		return nil, f
	}

	if m := g.findModel(name, version); m != nil {
		// An operator has unloaded it: there is no such model (404). One that failed to load is there, but not
		// now (503).
		if m.Reason == model.Unloaded {
			return nil, notFound("Request for unknown model: %s has no available versions: it is unloaded", singleQuoted(name))
		}
		if m.Reason != "" {
			return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, "unknown_model",
				"Request for unknown model: "+singleQuoted(name)+" has no available versions: "+m.Reason)
		}
		return m, nil
	}
	if version != "" && g.findModel(name, "") != nil {
		return nil, notFound("Request for unknown model: %s version %s is not found; served: %v", singleQuoted(name), singleQuoted(version), g.listVersions(name))
	}

	// Without a scheduler nobody knows which models there are.
	if !g.client.Connected() {
		return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, noScheduler, "the scheduler is not connected")
	}
	return nil, notFound("Request for unknown model: %s is not found; GET /v2/repository/index or RepositoryIndex lists the models", singleQuoted(name))
}

// singleQuoted quotes a client's text as Triton does in the errors that its clients compare, with what is
// not printable escaped.
func singleQuoted(text string) string {
	q := strconv.Quote(text)
	return "'" + q[1:len(q)-1] + "'"
}

// noScheduler labels calls that nobody could tell the model of.
const noScheduler = "no_scheduler"

// listVersions are those of a model that a backend serves, or all that are known if none does. A family has none: its
// variants do.
func (g *Gateway) listVersions(name string) []string {
	all, ready := []string{}, []string(nil)
	for _, m := range g.listModels() {
		if m.Name != name || m.Version == "" {
			continue
		}
		all = append(all, m.Version)
		if m.Ready {
			ready = append(ready, m.Version)
		}
	}

	if len(ready) > 0 {
		return ready
	}
	return all
}

// takeParameter takes a request parameter. Those that belong to extensions that we have not are
// refused only where ignoring them would give a wrong answer.
func (in *inference) takeParameter(name string, value int64) *fault {
	switch name {
	case "timeout":
		if value < 0 || value > timeoutMax.Microseconds() {
			return invalidFault("parameter timeout: %d µs: must be within 0 (none) and %d", value, timeoutMax.Microseconds())
		}
		in.timeout = time.Duration(value) * time.Microsecond
	case "priority":
		if value < 0 {
			return invalidFault("parameter priority: %d: must be 0 or more (1 is the highest, 0 leaves it open)", value)
		}
		if value > 0 {
			// The protocol's highest priority is 1, ours is the largest number.
			in.priority = uint8(priorityMax + 1 - min(value, priorityMax)) // lower ones than 255 count as 255
		}
	}
	return nil
}

// takeSequence takes what makes a call a step of a sequence, given as the parameter's JSON text.
func (in *inference) takeSequence(name, value string) *fault {
	s := &in.sequence
	flag := &s.Start
	switch name {
	case "sequence_id":
		// The later of two ids holds, whichever form it has.
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			s.ID, s.Name = n, ""
			return nil
		}
		text, err := strconv.Unquote(value)
		if err != nil || value[0] != '"' {
			return invalidFault("parameter sequence_id: %.40s: must be a whole number from 0 to 2^64-1, or a text", value)
		}
		s.ID, s.Name = 0, strings.Clone(text) // the message's memory is another's after the call
		return nil
	case "sequence_end":
		flag = &s.End
	}

	switch value {
	case "true":
		*flag = true
	case "false":
		*flag = false
	default:
		return invalidFault("parameter %s: %.40s: must be true or false", name, value)
	}
	return nil
}

// versionAsked is the version that a call's requests name. A sequence goes on with the version that it began with, unless its steps
// name one.
func (in *inference) versionAsked() string {
	if in.model.Sequence != nil {
		return in.wanted
	}
	return in.model.RequestVersion()
}

// checkSequence compares what a call says of a sequence with its model.
func (in *inference) checkSequence() *fault {
	switch {
	case in.model.Sequence == nil && in.sequence.IsZero():
		return nil
	case in.model.Sequence == nil:
		return invalidFault("model %q: sequence %.40s: the model keeps no sequences (no sequence_batching in its configuration)", in.model.Name, in.sequence.String())
	case in.sequence.ID == 0 && in.sequence.Name == "":
		return invalidFault("inference request to model '%s' must specify a non-zero or non-empty correlation ID", in.model.Name)
	case in.rows != 1:
		return invalidFault("inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", in.model.Name)
	}
	return nil
}

// setClasses sets how many classes an output is asked for.
func (o *output) setClasses(n int64) *fault {
	if n < 0 || n > classesMax {
		return invalidFault("output %q: parameter classification: %d: must be within 0 and %d", o.name, n, classesMax)
	}
	o.classes = int(n)
	return nil
}
