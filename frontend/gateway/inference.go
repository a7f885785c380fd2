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

// resolveModel finds a model by the client's name and version.
func (g *Gateway) resolveModel(ctx context.Context, name, version string) (*frontend.Model, *fault) {
	// Check this before any lookup: only clients that may use a model learn whether it exists.
	c := clientOf(ctx)
	if f := clientFault(c, c.CheckModel(name)); f != nil {
		return nil, f
	}

	if m := g.findModel(name, version); m != nil {
		// An operator unloaded the model, so it does not exist (404). A model that failed to load, or a family whose floor
		// no variant reaches, exists but is unavailable (503).
		if m.Reason == model.Unloaded {
			return nil, notFound("Request for unknown model: %s has no available versions: it is unloaded", singleQuoted(name))
		}
		if m.Reason != "" {
			label := "unknown_model"
			if strings.HasPrefix(m.Reason, model.BelowFloor) {
				label = model.FloorTooHigh.String()
			}
			return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, label,
				"Request for unknown model: "+singleQuoted(name)+" has no available versions: "+m.Reason)
		}
		return m, nil
	}
	if version != "" && g.findModel(name, "") != nil {
		return nil, notFound("Request for unknown model: %s version %s is not found; served: %v", singleQuoted(name), singleQuoted(version), g.listVersions(name))
	}

	// Without a scheduler the set of models is unknown.
	if !g.client.Connected() {
		return nil, refusalFault(http.StatusServiceUnavailable, codes.Unavailable, noScheduler, "the scheduler is not connected")
	}
	return nil, notFound("Request for unknown model: %s is not found; GET /v2/repository/index or RepositoryIndex lists the models", singleQuoted(name))
}

// singleQuoted quotes a client's text as Triton does in errors that its clients compare, with unprintable characters
// escaped.
func singleQuoted(text string) string {
	q := strconv.Quote(text)
	return "'" + q[1:len(q)-1] + "'"
}

// noScheduler labels calls whose model could not be looked up.
const noScheduler = "no_scheduler"

// listVersions returns a model's versions that a backend serves, or all known ones if no backend serves any. A family
// has none; its variants have.
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

// takeParameter applies a request parameter. Parameters of unsupported extensions are refused only where ignoring
// them would give a wrong answer.
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
			// The protocol's highest priority is 1, the scheduler's is the largest number.
			in.priority = uint8(priorityMax + 1 - min(value, priorityMax)) // priorities below 255 count as 255
		}
	}
	return nil
}

// takeSequence applies the parameters that make a call a step of a sequence; value is the parameter's JSON text.
func (in *inference) takeSequence(name, value string) *fault {
	s := &in.sequence
	flag := &s.Start
	switch name {
	case "sequence_id":
		// The later of two ids applies, whichever form it has.
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			s.ID, s.Name = n, ""
			return nil
		}
		text, err := strconv.Unquote(value)
		if err != nil || value[0] != '"' {
			return invalidFault("parameter sequence_id: %.40s: must be a whole number from 0 to 2^64-1, or a text", value)
		}
		s.ID, s.Name = 0, strings.Clone(text) // another message uses the memory after the call
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

// versionAsked returns the version that a call's requests name. A sequence stays with the version that it began with,
// unless its steps name one.
func (in *inference) versionAsked() string {
	if in.model.Sequence != nil {
		return in.wanted
	}
	return in.model.RequestVersion()
}

// checkSequence checks a call's sequence parameters against its model.
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

// setClasses sets the number of classes requested from an output.
func (o *output) setClasses(n int64) *fault {
	if n < 0 || n > classesMax {
		return invalidFault("output %q: parameter classification: %d: must be within 0 and %d", o.name, n, classesMax)
	}
	o.classes = int(n)
	return nil
}
