package gateway

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
)

// Limits on what a client can ask for in one call.
const (
	rowsMax     = 1024
	tensorsMax  = 256
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
	rows     int
	batched  bool // shapes carry the batch dimension, so the outputs' do too
	inputs   []input
	outputs  []output
	binary   bool // REST: outputs that do not say otherwise are binary
	room     room
}

// room is what serving a call needs besides; it is used again with the inference.
type room struct {
	ordered  []input
	at, ends []int
	starts   []int
	requests []frontend.Request
	results  []frontend.Result
	errs     []error
	raw      [][]byte
	shapes   []int64
}

// reset forgets a call but keeps its memory.
func (in *inference) reset() {
	r := &in.room
	clear(in.inputs)
	clear(in.outputs)
	clear(r.ordered)
	clear(r.requests)
	clear(r.results)
	clear(r.errs)
	clear(r.raw)
	*in = inference{inputs: in.inputs[:0], outputs: in.outputs[:0], room: *r}
}

// sized returns s with n zero elements, in the same memory if it is large enough.
func sized[T any](s []T, n int) []T {
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
	datatype string
	shape    []int64
	raw      []byte // elements of all rows, row-major, little-endian
	given    bool   // raw was set
}

// output is one tensor that the client asked for.
type output struct {
	name    string
	index   int // in the model's outputs
	binary  bool
	chosen  bool // binary was said for this output
	classes int  // top classes instead of the tensor; 0: the tensor
}

// model finds a model by the name and version that a client gave.
func (g *Gateway) model(name, version string) (*frontend.Model, *fault) {
	if m := g.client.Model(name, version); m != nil {
		return m, nil
	}
	if version != "" && g.client.Model(name, "") != nil {
		return nil, notFound("model %q: version %q is not served; served: %v", name, version, g.versions(name))
	}
	if !g.client.Connected() {
		return nil, refusal(http.StatusServiceUnavailable, codes.Unavailable, noScheduler, "the scheduler is not connected")
	}
	return nil, notFound("model %q is not served; GET /v2/repository/index or RepositoryIndex lists the models", name)
}

// noScheduler labels calls that nobody could tell the model of.
const noScheduler = "no_scheduler"

// versions are those of a model that a backend serves, or all that are known if none does.
func (g *Gateway) versions(name string) []string {
	var all, ready []string
	for _, m := range g.client.Models() {
		if m.Name != name {
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

// arrange brings the inputs to the model's order and checks names, datatypes, shapes and sizes.
func (in *inference) arrange() *fault {
	want := in.model.Inputs
	if len(in.inputs) != len(want) {
		return invalid("model %q: inputs: %d tensors: must be %d: %s", in.model.Name, len(in.inputs), len(want), names(want))
	}
	ordered := sized(in.room.ordered, len(want))
	in.rows = -1
	for i := range in.inputs {
		t := &in.inputs[i]
		k := slices.IndexFunc(want, func(w wire.Tensor) bool { return w.Name == t.name })
		if k < 0 {
			return invalid("model %q: input %q: no such input; the model has %s", in.model.Name, t.name, names(want))
		}
		if ordered[k].given {
			return invalid("model %q: input %q: given twice", in.model.Name, t.name)
		}
		if f := in.fit(t, want[k]); f != nil {
			return f
		}
		ordered[k] = *t
	}
	in.inputs, in.room.ordered = ordered, in.inputs
	return nil
}

// fit checks one input against the model's description of it.
func (in *inference) fit(t *input, want wire.Tensor) *fault {
	if t.datatype != want.Datatype {
		return invalid("model %q: input %q: datatype %q: must be %s", in.model.Name, t.name, t.datatype, want.Datatype)
	}
	rows, batched := rowsOf(t.shape, want.Shape)
	switch {
	case rows < 0:
		return invalid("model %q: input %q: shape %v: must be %v", in.model.Name, t.name, t.shape, batchShape(want.Shape, -1))
	case rows < 1 || rows > rowsMax:
		return invalid("model %q: input %q: shape %v: %d rows: must be within 1 and %d", in.model.Name, t.name, t.shape, rows, rowsMax)
	case in.rows >= 0 && rows != in.rows:
		return invalid("model %q: input %q: shape %v: %d rows: the other inputs have %d", in.model.Name, t.name, t.shape, rows, in.rows)
	}
	in.rows, in.batched = rows, in.batched || batched
	if !t.given {
		return invalid("model %q: input %q: has no data", in.model.Name, t.name)
	}
	return in.fitData(t, want)
}

// fitData checks that an input's bytes are what its shape and datatype make.
func (in *inference) fitData(t *input, want wire.Tensor) *fault {
	size, err := frontend.TensorBytes(want)
	if err != nil {
		return invalid("model %q: %v", in.model.Name, err)
	}
	if size >= 0 {
		if len(t.raw) != size*in.rows {
			return invalid("model %q: input %q: %d bytes of data: shape %v of %s takes %d", in.model.Name, t.name, len(t.raw), t.shape, t.datatype, size*in.rows)
		}
		return nil
	}
	n := in.rows * count(want.Shape)
	if got := elements(t.raw); got != n {
		if got < 0 {
			return invalid("model %q: input %q: BYTES data is cut: each element must be a 4-byte little-endian length and that many bytes", in.model.Name, t.name)
		}
		return invalid("model %q: input %q: %d elements of data: shape %v takes %d", in.model.Name, t.name, got, t.shape, n)
	}
	return nil
}

// rowsOf reads a client's shape: the model's with a batch dimension in front, or the model's own,
// which is one row. -1: neither.
func rowsOf(shape, want []int64) (rows int, batched bool) {
	switch {
	case len(shape) == len(want)+1 && slices.Equal(shape[1:], want):
		if shape[0] < 0 || shape[0] > math.MaxInt32 {
			return math.MaxInt32, true
		}
		return int(shape[0]), true
	case slices.Equal(shape, want):
		return 1, false
	}
	return -1, false
}

func count(shape []int64) int {
	n := 1
	for _, d := range shape {
		n *= int(d) // bounded when the model was announced
	}
	return n
}

// batchShape is the model's shape with n rows in front.
func batchShape(shape []int64, n int64) []int64 { return append([]int64{n}, shape...) }

func names(ts []wire.Tensor) string {
	text := ""
	for i, t := range ts {
		if i > 0 {
			text += ", "
		}
		text += strconv.Quote(t.Name)
	}
	return text
}

// choose resolves the requested outputs; none requested means all.
func (in *inference) choose() *fault {
	have := in.model.Outputs
	if len(in.outputs) == 0 {
		in.outputs = sized(in.outputs, len(have))
		for k := range have {
			in.outputs[k] = output{name: have[k].Name, index: k, binary: in.binary}
		}
		return nil
	}
	for i := range in.outputs {
		o := &in.outputs[i]
		o.index = slices.IndexFunc(have, func(t wire.Tensor) bool { return t.Name == o.name })
		if o.index < 0 {
			return invalid("model %q: output %q: no such output; the model has %s", in.model.Name, o.name, names(have))
		}
		if !o.chosen {
			o.binary = in.binary
		}
		if o.classes > 0 && have[o.index].Datatype == "BYTES" {
			return invalid("model %q: output %q: classification: a BYTES tensor has no classes", in.model.Name, o.name)
		}
		for _, other := range in.outputs[:i] {
			if other.name == o.name {
				return invalid("model %q: output %q: requested twice", in.model.Name, o.name)
			}
		}
	}
	return nil
}

// parameter takes a request parameter. Those that belong to extensions that we have not are
// refused only where ignoring them would give a wrong answer.
func (in *inference) parameter(name string, value int64) *fault {
	switch name {
	case "timeout":
		if value < 1 || value > timeoutMax.Microseconds() {
			return invalid("parameter timeout: %d µs: must be within 1 and %d", value, timeoutMax.Microseconds())
		}
		in.timeout = time.Duration(value) * time.Microsecond
	case "priority":
		if value < 0 || value > priorityMax {
			return invalid("parameter priority: %d: must be within 0 and %d (1 is the highest, 0 leaves it open)", value, priorityMax)
		}
		if value > 0 {
			in.priority = uint8(priorityMax + 1 - value)
		}
	case "sequence_id":
		if value != 0 {
			return invalid("parameter sequence_id: %d: sequences are not supported: must be absent or 0", value)
		}
	}
	return nil
}

// classification sets how many classes an output is asked for.
func (o *output) classification(n int64) *fault {
	if n < 0 || n > classesMax {
		return invalid("output %q: parameter classification: %d: must be within 0 and %d", o.name, n, classesMax)
	}
	o.classes = int(n)
	return nil
}
