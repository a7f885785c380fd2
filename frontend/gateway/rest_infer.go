package gateway

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"
)

// headerLength is the header of the binary tensor extension: how long the JSON in front is.
const headerLength = "Inference-Header-Content-Length"

// scratch is a buffer that a REST call reads its body into or writes its answer to.
type scratch struct{ b []byte }

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// bodiesMax bounds what the bodies of all REST calls under way may take, beyond one of any size.
const bodiesMax = 1 << 30

// scratchMax is the largest buffer worth keeping.
const scratchMax = 4 << 20

func (s *scratch) put() {
	if cap(s.b) <= scratchMax {
		s.b = s.b[:0]
		scratches.Put(s)
	}
}

// inferences keeps the memory of REST calls.
var inferences = sync.Pool{New: func() any { return new(inference) }}

func (g *Gateway) restInfer(w http.ResponseWriter, r *http.Request) {
	body := scratches.Get().(*scratch)
	defer body.put()
	reply := scratches.Get().(*scratch)
	defer reply.put()
	in := inferences.Get().(*inference)
	defer func() { in.reset(); inferences.Put(in) }()
	a, f := g.restServe(w, r, in, body)
	if f != nil {
		g.metrics.fault(r.PathValue("model"), f)
		writeFault(w, f)
		return
	}
	defer a.release()
	head, binary := in.appendResponse(reply.b[:0], a)
	reply.b = head
	h := w.Header()
	size := len(head)
	if binary {
		for i, o := range in.outputs {
			if o.binary {
				size += len(a.raw[i])
			}
		}
		h.Set("Content-Type", "application/octet-stream")
		h.Set(headerLength, strconv.Itoa(len(head)))
	} else {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(size))
	_, _ = w.Write(head) // a client that went away needs no answer
	for i, o := range in.outputs {
		if o.binary {
			_, _ = w.Write(a.raw[i])
		}
	}
}

// restServe reads, checks and runs one REST call.
func (g *Gateway) restServe(w http.ResponseWriter, r *http.Request, in *inference, body *scratch) (a answer, f *fault) {
	if in.model, f = g.model(r.PathValue("model"), r.PathValue("version")); f != nil {
		return a, f
	}
	f = g.readBody(w, r, body)
	defer func(n int) { g.bodies.Add(-int64(n)) }(len(body.b))
	if f != nil {
		return a, f
	}
	head := len(body.b)
	if text := r.Header.Get(headerLength); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > head {
			return a, invalid("header %s: %.20q: must be a number within 0 and the body's length, %d", headerLength, text, head)
		}
		head = n
	}
	if f := in.parse(body.b[:head], body.b[head:]); f != nil {
		return a, f
	}
	if f := in.arrange(); f != nil {
		return a, f
	}
	if f := in.choose(); f != nil {
		return a, f
	}
	return g.run(r.Context(), in)
}

// readBody reads a body, unpacked if it came packed. What it has read counts among the bodies under
// way, also after a fault.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, body *scratch) *fault {
	limit := g.o.BodyMax
	if r.ContentLength > limit {
		return tooLarge("body: %d bytes: must be at most %d", r.ContentLength, limit)
	}
	var from io.Reader = http.MaxBytesReader(w, r.Body, limit)
	most := int(limit) + 1
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		if r.ContentLength >= 0 {
			most = int(r.ContentLength) + 1
		}
	case "gzip", "deflate":
		unpacked, err := unpacker(from, encoding)
		if err != nil {
			return invalid("body: Content-Encoding %s: %v", encoding, err)
		}
		defer unpacked.Close()
		from = io.LimitReader(unpacked, limit+1)
	default:
		return refusal(http.StatusUnsupportedMediaType, codes.InvalidArgument, "invalid_argument", "header Content-Encoding: "+strconv.Quote(encoding)+": must be gzip, deflate or identity")
	}
	if err := g.readAll(from, body, most); err != nil {
		return bodyFault(err, limit)
	}
	if int64(len(body.b)) > limit {
		return tooLarge("body: unpacks to more than %d bytes, the limit", limit)
	}
	return nil
}

func unpacker(from io.Reader, encoding string) (io.ReadCloser, error) {
	if encoding == "gzip" {
		return gzip.NewReader(from)
	}
	return zlib.NewReader(from)
}

func bodyFault(err error, limit int64) *fault {
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errBodies):
		return refusal(http.StatusTooManyRequests, codes.ResourceExhausted, "too_many_bodies", "body: "+err.Error()+", "+strconv.Itoa(bodiesMax)+" bytes")
	case errors.As(err, &large):
		return tooLarge("body: larger than %d bytes, the limit", limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refusal(http.StatusRequestTimeout, codes.DeadlineExceeded, "slow_body", "body: did not arrive in time")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("body: ends before its Content-Length")
	}
	return invalid("body: %v", err)
}

// bodyStart is the memory that a body gets at first: a length that was only promised takes none.
const bodyStart = 64 << 10

var errBodies = errors.New("the bodies under way take all the memory that bodies may take")

// readAll is io.ReadAll into a buffer that is kept, which grows up to most as bytes arrive.
func (g *Gateway) readAll(from io.Reader, body *scratch, most int) error {
	b := body.b[:0]
	defer func() { body.b = b }()
	for {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, max(min(max(2*cap(b), bodyStart), most), cap(b)+1)), b...)
		}
		n, err := from.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch over := g.bodies.Add(int64(n)) > bodiesMax+g.o.BodyMax; {
		case over:
			return errBodies
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// parse reads an inference request object, with the binary tensors that follow it. What it keeps
// points into text and tail.
func (in *inference) parse(text, tail []byte) *fault {
	var fail *fault
	keep := func(f *fault) {
		if fail == nil {
			fail = f
		}
	}
	s := &jsonScanner{text: text}
	s.members(func(key string) {
		switch key {
		case "id":
			in.id = s.str()
		case "parameters":
			keep(in.parseParameters(s))
		case "inputs":
			s.array(func() { tail = in.parseInput(s, tail, keep) })
		case "outputs":
			s.array(func() { keep(in.parseOutput(s)) })
		default:
			s.skip()
		}
		if fail != nil {
			s.fail("refused")
		}
	})
	s.end()
	switch {
	case fail != nil:
		return fail
	case s.err != nil:
		return invalid("body: %v", s.err)
	case len(tail) > 0:
		return invalid("body: %d bytes of binary data are left over: the inputs' binary_data_size must add up to all of it", len(tail))
	}
	return nil
}

func (in *inference) parseParameters(s *jsonScanner) *fault {
	var fail *fault
	s.members(func(key string) {
		switch key {
		case "timeout", "priority", "sequence_id":
			if n := s.integer(); s.err == nil && fail == nil {
				fail = in.parameter(key, n)
			} else if fail == nil {
				fail = invalid("parameter %s: must be a whole number: %v", key, s.err)
			}
		case "binary_data_output":
			in.binary = s.boolean()
		default:
			s.skip()
		}
	})
	return fail
}

// parseInput reads one input; its data is parsed once the datatype is known.
func (in *inference) parseInput(s *jsonScanner, tail []byte, keep func(*fault)) []byte {
	if len(in.inputs) >= tensorsMax {
		keep(invalid("inputs: more than %d tensors", tensorsMax))
		s.fail("refused")
		return tail
	}
	var t input
	var data []byte
	size := int64(-1)
	s.members(func(key string) {
		switch key {
		case "name":
			t.name = s.str()
		case "datatype":
			t.datatype = s.str()
		case "shape":
			t.shape = s.shape()
		case "data":
			data = s.skip()
		case "parameters":
			s.members(func(key string) {
				if key == "binary_data_size" {
					size = s.integer()
				} else {
					s.skip()
				}
			})
		default:
			s.skip()
		}
	})
	if s.err != nil {
		return tail
	}
	switch {
	case size >= 0 && data != nil:
		keep(invalid("input %q: has data and binary_data_size: give one", t.name))
	case size > int64(len(tail)):
		keep(invalid("input %q: parameter binary_data_size: %d: only %d bytes of binary data are left", t.name, size, len(tail)))
	case size >= 0:
		t.raw, t.given = tail[:size], true
		tail = tail[size:]
	case data != nil:
		keep(t.parseData(data))
	}
	in.inputs = append(in.inputs, t)
	return tail
}

// parseData parses an input's JSON data into raw elements.
func (t *input) parseData(data []byte) *fault {
	s := &jsonScanner{text: data}
	limit := 4*len(data) + 8 // every element takes a digit and a comma, and at most 8 bytes
	t.raw, t.given = s.tensorData(make([]byte, 0, min(limit, sizeHint(t))), t.datatype, limit, 0), true
	if s.err != nil {
		return invalid("input %q: %v", t.name, s.err)
	}
	return nil
}

// sizeHint guesses the bytes of a tensor from its shape; a wrong shape is found later.
func sizeHint(t *input) int {
	n := 8
	for _, d := range t.shape {
		if d < 0 || d > 1<<20 || n > 1<<26 {
			return 64
		}
		n *= int(max(d, 1))
	}
	return n
}

func (s *jsonScanner) shape() []int64 {
	var shape []int64
	s.array(func() {
		n := s.integer()
		if len(shape) >= 16 {
			s.fail("shape: more than 16 dimensions")
			return
		}
		if s.err == nil && n < 0 {
			s.fail("shape: %d: dimensions must be 0 or more", n)
		}
		shape = append(shape, n)
	})
	return shape
}

func (in *inference) parseOutput(s *jsonScanner) *fault {
	var o output
	var fail *fault
	classes := int64(0)
	s.members(func(key string) {
		switch key {
		case "name":
			o.name = s.str()
		case "parameters":
			s.members(func(key string) {
				switch key {
				case "binary_data":
					o.binary, o.chosen = s.boolean(), true
				case "classification":
					classes = s.integer()
				default:
					s.skip()
				}
			})
		default:
			s.skip()
		}
	})
	if len(in.outputs) >= tensorsMax {
		return invalid("outputs: more than %d tensors", tensorsMax)
	}
	fail = o.classification(classes)
	in.outputs = append(in.outputs, o)
	return fail
}

// appendResponse appends the inference response object and tells whether binary tensors follow it.
func (in *inference) appendResponse(b []byte, a answer) (out []byte, binary bool) {
	b = append(b, `{"model_name":`...)
	b = appendQuoted(b, []byte(in.model.Name))
	b = append(b, `,"model_version":`...)
	b = appendQuoted(b, []byte(in.model.Version))
	if in.id != "" {
		b = append(b, `,"id":`...)
		b = appendQuoted(b, []byte(in.id))
	}
	b = append(b, `,"outputs":[`...)
	for i, o := range in.outputs {
		if i > 0 {
			b = append(b, ',')
		}
		shape, datatype := in.shapeOf(i)
		b = append(b, `{"name":`...)
		b = appendQuoted(b, []byte(o.name))
		b = append(b, `,"datatype":"`...)
		b = append(b, datatype...)
		b = append(b, `","shape":`...)
		b = appendShape(b, shape)
		if o.binary {
			b = append(b, `,"parameters":{"binary_data_size":`...)
			b = strconv.AppendInt(b, int64(len(a.raw[i])), 10)
			b = append(b, '}')
			binary = true
		} else {
			b = append(b, `,"data":`...)
			b = appendTensor(b, a.raw[i], datatype)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...), binary
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
