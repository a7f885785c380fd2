package gateway

import (
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe/spans"
)

// headerLength is the header of the binary tensor extension: how long the JSON in front is.
const headerLength = "Inference-Header-Content-Length"

// scratch is a buffer that a REST call reads its body into or writes its answer to.
type scratch struct{ b []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// scratchMax is the largest buffer worth keeping.
const scratchMax = 4 << 20

func (s *scratch) putBack() {
	if cap(s.b) <= scratchMax {
		s.b = s.b[:0]
		scratches.Put(s)
	}
}

// inferences keeps the memory of REST calls.
var inferences = sync.Pool{New: func() any { return new(inference) }}

func (in *inference) putBack() {
	in.resetCall()
	if !in.isLarge() {
		inferences.Put(in)
	}
}

func (g *Gateway) restInfer(w http.ResponseWriter, r *http.Request) {
	g.serveCall(w, r, "rest", (*inference).parseInfer, (*Gateway).writeAnswer)
}

// serveCall answers one call over HTTP: parse takes its body apart, write puts the model's answer into words. The call's
// name is what the access log calls it.
func (g *Gateway) serveCall(w http.ResponseWriter, r *http.Request, name string,
	parse func(*inference, *http.Request, []byte) *fault, write func(*Gateway, http.ResponseWriter, *inference, answer)) {
	body := scratches.Get().(*scratch)
	defer body.putBack()
	in := inferences.Get().(*inference)
	defer in.putBack()

	ctx := r.Context()
	if g.o.Tracer != nil {
		ctx, in.span = spans.Begin(ctx, g.o.Tracer, startOf(ctx), propagation.HeaderCarrier(r.Header))
		w.Header().Set("Traceresponse", in.span.Name(ctx))
	}

	a, f := g.runBody(ctx, w, r, in, body, parse)
	in.endSpan(r.PathValue("model"), f)
	g.logCall(r.Context(), name, r.PathValue("model"), in, r.Header.Get("Traceparent"), f)

	if f != nil {
		g.metrics.countFault(r.PathValue("model"), f)
		writeFault(w, f)
		return
	}

	// The answer points into the outputs, so that they live until it is written.
	defer a.releaseOutputs()
	write(g, w, in, a)
}

// runBody reads and checks a call's body and runs what it asks for.
func (g *Gateway) runBody(ctx context.Context, w http.ResponseWriter, r *http.Request, in *inference, body *scratch,
	parse func(*inference, *http.Request, []byte) *fault) (a answer, f *fault) {
	if in.model, f = g.resolveModel(ctx, r.PathValue("model"), r.PathValue("version")); f != nil {
		return a, f
	}

	// A client that has used up what it may is refused before its body takes memory.
	client := clientOf(ctx)
	if f = clientFault(client, client.CheckLimits(time.Now())); f != nil {
		return a, f
	}

	in.memory, in.regions, in.text, in.wanted = &g.memory, &g.regions, true, r.PathValue("version")
	if f = g.readBody(w, r, in, body); f != nil {
		return a, f
	}
	if f = parse(in, r, body.b); f != nil {
		return a, f
	}

	g.chooseVersion(in)
	if f = g.chooseClass(ctx, in); f != nil {
		return a, f
	}
	if f = in.arrangeInputs(); f != nil {
		return a, f
	}
	if f = in.chooseOutputs(); f != nil {
		return a, f
	}
	return g.runCall(ctx, in)
}

// parseInfer takes a body apart. With the header, its number of bytes is JSON and the rest is binary; a header of 0 says
// that all is one tensor.
func (in *inference) parseInfer(r *http.Request, body []byte) *fault {
	text := r.Header.Get(headerLength)
	if text == "" {
		return in.parseRequest(body, nil)
	}

	head, err := strconv.Atoi(text)
	if err != nil || head < 0 || head > len(body) {
		return invalidFault("header %s: %.20q: must be a number within 0 and the body's length, %d", headerLength, text, len(body))
	}
	if head == 0 {
		return in.takeRaw(body)
	}
	return in.parseRequest(body[:head], body[head:])
}

// readBody reads a body, unpacked if it came packed. Its memory counts as the call's.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, in *inference, body *scratch) *fault {
	// A length that is too large is refused before a byte of it is read.
	limit := g.o.BodyMax
	if r.ContentLength > limit {
		return tooLarge("body: %d bytes: must be at most %d", r.ContentLength, limit)
	}

	var from io.Reader = http.MaxBytesReader(w, r.Body, limit)
	most := int(limit) + 1
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		if r.ContentLength >= 0 {
			// With room for one byte more, the end is met without growing the buffer.
			most = int(r.ContentLength) + 1
		}
	case "gzip", "deflate":
		unpacked, err := unpackFrom(from, encoding)
		if err != nil {
			return invalidFault("body: Content-Encoding %s: %v", encoding, err)
		}
		defer unpacked.Close()

		// The bound so far is on packed bytes, which may unpack to any number.
		from = io.LimitReader(unpacked, limit+1)
	default:
		return refusalFault(http.StatusUnsupportedMediaType, codes.InvalidArgument, "invalid_argument", "header Content-Encoding: "+strconv.Quote(encoding)+": must be gzip, deflate or identity")
	}

	if err := in.readAll(from, body, most); err != nil {
		return bodyFault(err, limit)
	}

	if int64(len(body.b)) > limit {
		return tooLarge("body: unpacks to more than %d bytes, the limit", limit)
	}
	return nil
}

func unpackFrom(from io.Reader, encoding string) (io.ReadCloser, error) {
	if encoding == "gzip" {
		return gzip.NewReader(from)
	}
	return zlib.NewReader(from)
}

func bodyFault(err error, limit int64) *fault {
	var large *http.MaxBytesError
	var f *fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &large):
		return tooLarge("body: larger than %d bytes, the limit", limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refusalFault(http.StatusRequestTimeout, codes.DeadlineExceeded, "slow_body", "body: did not arrive in time")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalidFault("body: ends before its Content-Length")
	}
	return invalidFault("body: %v", err)
}

// bodyStart is the memory that a body gets at first, and bodyGrowth how many times what has arrived it gets at
// most: a length that was only promised takes none.
const (
	bodyStart  = 64 << 10
	bodyGrowth = 4
)

// readAll is io.ReadAll into a buffer that is kept, which grows up to most as bytes arrive.
func (in *inference) readAll(from io.Reader, body *scratch, most int) error {
	b := body.b[:0]
	defer func() { body.b = b }()
	if f := in.takeBytes(int64(cap(b))); f != nil {
		return f
	}

	for {
		if len(b) == cap(b) {
			// Both buffers count while one is copied to the other.
			size := max(min(max(bodyGrowth*cap(b), bodyStart), most), cap(b)+1)
			if f := in.takeBytes(int64(size)); f != nil {
				return f
			}
			outgrown := cap(b)
			b = append(make([]byte, 0, size), b...)
			in.giveBytes(int64(outgrown))
		}

		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// parseRequest reads an inference request object, with the binary tensors that follow it. What it keeps
// points into text and tail.
func (in *inference) parseRequest(text, tail []byte) *fault {
	var fail *fault
	keep := func(f *fault) {
		if fail == nil {
			fail = f
		}
	}

	s := &jsonScanner{text: text}
	s.eachMember(func(key string) {
		switch key {
		case "id":
			in.id = s.readString()
		case "parameters":
			keep(in.parseParameters(s))
		case "inputs":
			s.eachElement(func() { tail = in.parseInput(s, tail, keep) })
		case "outputs":
			s.eachElement(func() { keep(in.parseOutput(s)) })
		default:
			s.skipAny()
		}

		// The scanner stops at an error; the fault that is kept says more.
		if fail != nil {
			s.failAt("refused")
		}
	})

	s.expectEnd()
	switch {
	case fail != nil:
		return fail
	case s.err != nil:
		return invalidFault("body: %v", s.err)
	case len(tail) > 0:
		return invalidFault("body: %d bytes of binary data are left over: the inputs' binary_data_size must add up to all of it", len(tail))
	}
	return nil
}

// takeRaw reads a raw binary request: no JSON, the body is one row of the model's only input, and every
// output is answered as binary. The body of a BYTES input is its one element, without a length in front.
func (in *inference) takeRaw(body []byte) *fault {
	want := in.model.Inputs
	if len(want) != 1 {
		return invalidFault("model %q: header %s: 0: a raw binary request needs a model with one input, this one has %d", in.model.Name, headerLength, len(want))
	}

	t := input{name: want[0].Name, datatype: want[0].Datatype, shape: want[0].Shape, raw: body, given: true}
	if f := t.closeShape(in.model, len(body)); f != nil {
		return f
	}
	if !in.model.Unbatched {
		t.shape = batchShape(t.shape, 1)
	}

	if t.datatype == model.Bytes {
		if n := want[0].RowElements(); n != 1 {
			return invalidFault("model %q: input %q: a raw binary request holds one BYTES element, shape %v takes %d", in.model.Name, t.name, want[0].Shape, n)
		}
		if f := in.takeBytes(int64(len(body))); f != nil {
			return f
		}
		t.raw = append(le.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...)
	}
	in.inputs, in.binary = append(in.inputs, t), true
	return nil
}

func (in *inference) parseParameters(s *jsonScanner) *fault {
	var fail *fault
	s.eachMember(func(key string) {
		switch key {
		case "sequence_id", "sequence_start", "sequence_end":
			if f := in.takeSequence(key, viewText(s.skipAny())); s.err == nil && fail == nil {
				fail = f
			}
		case "timeout", "priority":
			if n := s.readInteger(); s.err == nil && fail == nil {
				fail = in.takeParameter(key, n)
			} else if fail == nil {
				fail = invalidFault("parameter %s: must be a whole number: %v", key, s.err)
			}
		case "accuracy_floor":
			text := s.readNumber()
			floor, err := strconv.ParseFloat(viewText(text), 64)
			if f := in.takeFloor(floor); s.err == nil && fail == nil && (f != nil || err != nil) {
				fail = f
			}
		case "binary_data_output":
			in.binary = s.readBoolean()
		default:
			s.skipAny()
		}
	})

	return fail
}

// parseInput reads one input; its data is parsed once the datatype is known.
func (in *inference) parseInput(s *jsonScanner, tail []byte, keep func(*fault)) []byte {
	if len(in.inputs) >= tensorsMax {
		keep(invalidFault("inputs: more than %d tensors", tensorsMax))
		s.failAt("refused")
		return tail
	}

	var t input
	var data []byte
	size := int64(-1)

	s.eachMember(func(key string) {
		switch key {
		case "name":
			t.name = s.readString()
		case "datatype":
			t.datatype = model.Datatype(s.readString())
		case "shape":
			t.shape = s.readShape()
		case "data":
			s.nonFinite = true

			// Members come in any order, so the datatype may still follow.
			data = s.skipAny()
			s.nonFinite = false
		case "parameters":
			s.eachMember(func(key string) {
				switch {
				case key == "binary_data_size":
					size = s.readInteger()
				case isMemoryParameter(key):
					keep(t.place.parseJSON(s, key))
				default:
					s.skipAny()
				}
			})
		default:
			s.skipAny()
		}
	})

	if s.err != nil {
		return tail
	}

	// Binary data lies behind the JSON in the order of the inputs: each takes its part of what is left.
	switch {
	case size >= 0 && data != nil:
		keep(invalidFault("input %q: has data and binary_data_size: give one", t.name))
	case size > int64(len(tail)):
		keep(invalidFault("input %q: parameter binary_data_size: %d: only %d bytes of binary data are left", t.name, size, len(tail)))
	case size >= 0:
		t.raw, t.given = tail[:size], true
		tail = tail[size:]
	case data != nil:
		keep(in.parseData(&t, data))
	}

	in.inputs = append(in.inputs, t)
	return tail
}

// parseData parses an input's JSON data into raw elements.
func (in *inference) parseData(t *input, data []byte) *fault {
	if t.datatype == "" {
		return invalidFault("input %q: datatype: is missing: must be one of the protocol's, such as FP32", t.name)
	}

	limit := 4*len(data) + 8 // every element takes a digit and a comma, and at most 8 bytes
	if hint := sizeHint(t); hint > 0 {
		limit = min(limit, hint+hintSlack)
	}

	if f := in.takeBytes(int64(limit)); f != nil {
		return f
	}

	// Eight bytes more: an element that goes over the limit is noticed when it is there.
	s := &jsonScanner{text: data, nonFinite: true}
	t.raw, t.given = s.tensorData(make([]byte, 0, limit+8), t.datatype, limit, 0), true
	if s.err != nil {
		return invalidFault("input %q: %v", t.name, s.err)
	}
	return nil
}

// hintSlack lets data that is a little too long be parsed, so that the error can say by how much.
const hintSlack = 1024

// sizeHint is the bytes of a tensor by its shape; 0 where the shape does not tell.
func sizeHint(t *input) int {
	size := t.datatype.Size()
	if size == 0 {
		return 0
	}
	for _, d := range t.shape {
		// The bounds keep the product within an int.
		if d < 0 || d > 1<<20 || size > 1<<26 {
			return 0
		}
		size *= int(d)
	}
	return size
}

func (s *jsonScanner) readShape() []int64 {
	var shape []int64
	s.eachElement(func() {
		n := s.readInteger()

		// A zero takes two bytes of JSON and eight of memory: the count is bounded while it grows.
		if len(shape) >= dimsMax {
			s.failAt("shape: more than %d dimensions", dimsMax)
			return
		}
		if s.err == nil && n < 0 {
			s.failAt("shape: %d: dimensions must be 0 or more", n)
		}
		shape = append(shape, n)
	})
	return shape
}

func (in *inference) parseOutput(s *jsonScanner) *fault {
	if len(in.outputs) >= tensorsMax {
		s.failAt("refused")
		return invalidFault("outputs: more than %d tensors", tensorsMax)
	}

	var o output
	var fail *fault
	classes := int64(0)

	s.eachMember(func(key string) {
		switch key {
		case "name":
			o.name = s.readString()
		case "parameters":
			s.eachMember(func(key string) {
				switch key {
				case "binary_data":
					o.binary, o.chosen = s.readBoolean(), true
				case "classification":
					classes = s.readInteger()
				default:
					if !isMemoryParameter(key) {
						s.skipAny()
					} else if f := o.place.parseJSON(s, key); fail == nil {
						fail = f
					}
				}
			})
		default:
			s.skipAny()
		}
	})

	// Its error names the output, and the name may be the last member.
	if f := o.setClasses(classes); fail == nil {
		fail = f
	}
	in.outputs = append(in.outputs, o)
	return fail
}

func appendShape(b []byte, shape []int64) []byte {
	b = append(b, '[')
	for i, d := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, d, 10)
	}
	return append(b, ']')
}
