package gateway

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"  // takes packed requests
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that leanCodec falls back to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend/gateway/oip"
)

// leanCodec decodes inference requests without copying tensors and encodes their responses in one
// pass; every other message goes through grpc's own codec. The bytes on the wire are the same.
type leanCodec struct {
	proto   encoding.CodecV2
	gateway *Gateway
}

func newLeanCodec(g *Gateway) leanCodec { return leanCodec{encoding.GetCodecV2("proto"), g} }

func (leanCodec) Name() string { return "proto" }

// otherMax bounds messages that are not inferences: a few names. The generated decoder makes an object of
// every two bytes of some.
const otherMax = 64 << 10

// Unmarshal implements encoding.CodecV2.
func (c leanCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*inferMessage)
	if !ok {
		_, brings := v.(*oip.RepositoryModelLoadRequest) // a model's files; BodyMax bounds them

		// gRPC bounds messages by BodyMax, which is made for tensors and far too large for names.
		if n := data.Len(); n > otherMax && !brings {
			return fmt.Errorf("message of %d bytes: must be at most %d", n, otherMax)
		}
		return c.proto.Unmarshal(data, v)
	}

	// A message of one piece stays where gRPC has read it; pieces are copied together once.
	m.buf = data.MaterializeToBuffer(&c.gateway.memory)
	if err := m.decodeMessage(m.buf.ReadOnlyData()); err != nil {
		m.fault = invalidFault("request: %v", err) // of an error from here gRPC would make an internal one
	}
	return nil
}

// Marshal implements encoding.CodecV2.
func (c leanCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch r := v.(type) {
	case *inferReply:
		return c.marshalReply(r, r.measure(), r.append)
	case streamReply:
		return c.marshalReply(r.inferReply, r.measure(), r.append)
	}
	return c.proto.Marshal(v)
}

// marshalReply encodes a reply of a known size, and releases it.
func (c leanCodec) marshalReply(r *inferReply, size int, appendTo func([]byte) []byte) (mem.BufferSlice, error) {
	defer r.releaseReply()

	// gRPC pools no buffer as small as this, so that Put would never be called.
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(appendTo(make([]byte, 0, size)))}, nil
	}

	pool := &sentReply{gateway: c.gateway}
	if r.call != nil {
		pool.abort = r.call.hangUp
	}

	b := pool.Get(size)
	out := appendTo((*b)[:0])

	// What outgrew the buffer would not lie in it, and b is what is sent.
	if len(out) != size {
		return nil, fmt.Errorf("response of %d bytes was measured as %d", len(out), size)
	}
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

// sentReply is the pool of one reply's buffer: it is listed until the client has taken the reply.
type sentReply struct {
	transfer
	gateway *Gateway
}

// Get implements mem.BufferPool.
func (p *sentReply) Get(n int) *[]byte {
	b := p.gateway.memory.Get(n)

	// Without a connection nobody can be hung up on, so nothing needs to be listed.
	if p.abort != nil {
		p.gateway.replies.addTransfer(&p.transfer)
	}
	return b
}

// Put implements mem.BufferPool.
func (p *sentReply) Put(b *[]byte) {
	p.gateway.replies.removeTransfer(&p.transfer)
	p.gateway.memory.Put(b)
}

// inferMessage is a ModelInferRequest as it came: its strings and tensors point into buf until
// release.
type inferMessage struct {
	inference
	name, version string
	raws          [][]byte // raw_input_contents
	contents      [][]byte // InferTensorContents of each input, encoded; nil: none
	fault         *fault   // a parameter that cannot be right
	buf           mem.Buffer
	reply         inferReply // of this message
}

var messages = sync.Pool{New: func() any {
	m := new(inferMessage)
	m.reply.inferMessage = m
	return m
}}

// releaseMessage ends the message; it may be used for another.
func (m *inferMessage) releaseMessage() {
	if m.buf != nil {
		m.buf.Free()
	}

	// Everything below points into buf: a pooled message must not keep its memory alive.
	m.inference.resetCall()
	clear(m.raws)
	clear(m.contents)
	m.reply.answer, m.reply.call = answer{}, nil
	m.name, m.version, m.raws, m.contents, m.fault, m.buf = "", "", m.raws[:0], m.contents[:0], nil, nil

	// A call of a thousand rows must not make the next call of one row keep its memory.
	if !m.inference.isLarge() {
		messages.Put(m)
	}
}

// errLimit is wrapped by errors that refuse a message for its counts while it is decoded: each tensor takes
// more memory than its two bytes on the wire, so a count must be bounded before the message has been read.
var errLimit = errors.New("too many")

func overLimit(what string, limit int) error {
	return fmt.Errorf("%s: %w: must be at most %d", what, errLimit, limit)
}

// eachField calls each for every field of an encoded message; n is the value of a varint or a fixed
// field, b the bytes of a length-delimited one.
func eachField(msg []byte, each func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error) error {
	for len(msg) > 0 {
		num, typ, k := protowire.ConsumeTag(msg)

		// A negative length is the decoder's error code.
		if k < 0 {
			return protowire.ParseError(k)
		}
		msg = msg[k:]

		var n uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			n, k = protowire.ConsumeVarint(msg)
		case protowire.Fixed64Type:
			n, k = protowire.ConsumeFixed64(msg)
		case protowire.Fixed32Type:
			var n32 uint32
			n32, k = protowire.ConsumeFixed32(msg)
			n = uint64(n32)
		case protowire.BytesType:
			b, k = protowire.ConsumeBytes(msg)
		default:
			// Groups are stepped over, as any field that a reader does not know.
			k = protowire.ConsumeFieldValue(num, typ, msg)
		}

		if k < 0 {
			return protowire.ParseError(k)
		}
		msg = msg[k:]

		if err := each(num, typ, n, b); err != nil {
			return err
		}
	}
	return nil
}

func (m *inferMessage) decodeMessage(msg []byte) error {
	return eachField(msg, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		// Every field of the request is length-delimited; what is not is unknown, and skipped.
		if typ != protowire.BytesType {
			return nil
		}

		// The numbers are those of ModelInferRequest.
		switch num {
		case 1:
			m.name = viewText(b)
		case 2:
			m.version = viewText(b)
		case 3:
			m.id = viewText(b)
		case 4:
			// Decoding goes on after a fault: a stream's error names the request's id, which may follow.
			name, p, err := decodeParameter(b)
			if f := m.applyParameter(name, p); f != nil && m.fault == nil {
				m.fault = f
			}
			return err
		case 5:
			return m.decodeInput(b)
		case 6:
			return m.decodeOutput(b)
		case 7:
			if len(m.raws) == tensorsMax {
				return overLimit("raw_input_contents", tensorsMax)
			}
			m.raws = append(m.raws, b)
		}
		return nil
	})
}

// applyParameter takes one request parameter.
func (m *inferMessage) applyParameter(name string, p parameter) *fault {
	switch name {
	case "sequence_id", "sequence_start", "sequence_end":
		return m.takeSequence(name, p.String())
	case "timeout", "priority":
		n, ok := p.wholeNumber()
		if !ok {
			return invalidFault("parameter %s: must be an int64_param or a uint64_param", name)
		}
		return m.inference.takeParameter(name, n)
	case "accuracy_floor":
		floor, ok := p.number()
		if !ok {
			return invalidFault("parameter %s: must be a double_param, an int64_param or a uint64_param", name)
		}
		return m.takeFloor(floor)
	}

	// Parameters of extensions that we have not change nothing about the answer.
	return nil
}

// parameter is a decoded InferParameter: num tells which of its choices is set.
type parameter struct {
	num  protowire.Number
	n    uint64
	text []byte // of a string_param; in the call's buffer
}

// String shows the parameter as JSON would have it.
func (p parameter) String() string {
	// The numbers are those of InferParameter's choices.
	switch p.num {
	case 1:
		return strconv.FormatBool(p.n != 0)
	case 2:
		return strconv.FormatInt(int64(p.n), 10)
	case 3:
		return strconv.Quote(string(p.text))
	case 4:
		return strconv.FormatFloat(math.Float64frombits(p.n), 'g', -1, 64)
	}
	return strconv.FormatUint(p.n, 10)
}

// wholeNumber is the parameter as a whole number. A uint64 above int64 saturates: no limit lies there.
func (p parameter) wholeNumber() (int64, bool) {
	switch p.num {
	case 2:
		return int64(p.n), true
	case 5:
		return int64(min(p.n, math.MaxInt64)), true
	}
	return 0, false
}

// number is the parameter as a number.
func (p parameter) number() (float64, bool) {
	if p.num == 4 {
		return math.Float64frombits(p.n), true
	}
	n, ok := p.wholeNumber()
	return float64(n), ok
}

// decodeParameter decodes an entry of a map of parameters.
func decodeParameter(entry []byte) (name string, p parameter, err error) {
	err = eachField(entry, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		// An entry of a map is a message: its key is field 1 and its value field 2.
		switch {
		case num == 1 && typ == protowire.BytesType:
			name = viewText(b)
		case num == 2 && typ == protowire.BytesType:
			return eachField(b, func(num protowire.Number, _ protowire.Type, n uint64, text []byte) error {
				p = parameter{num, n, text}
				return nil
			})
		}
		return nil
	})
	return name, p, err
}

func (m *inferMessage) decodeInput(msg []byte) error {
	if len(m.inputs) == tensorsMax {
		return overLimit("inputs", tensorsMax)
	}
	m.inputs = append(m.inputs, input{})
	t := &m.inputs[len(m.inputs)-1]

	var contents []byte
	err := eachField(msg, func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error {
		switch {
		case num == 3 && typ == protowire.VarintType:
			// Writers need not pack repeated numbers, and readers must take both forms.
			return t.appendDimension(n)
		case typ != protowire.BytesType:
		case num == 1:
			t.name = viewText(b)
		case num == 2:
			t.datatype = model.Datatype(viewText(b))
		case num == 3:
			return t.appendPackedShape(b)
		case num == 4:
			name, p, err := decodeParameter(b)
			if err != nil || !isMemoryParameter(name) {
				return err
			}
			m.keepFault(t.place.decodeGRPC(name, p))
		case num == 5:
			// An empty message is not an absent one, which nil stands for.
			contents = b
			if b == nil {
				contents = []byte{}
			}
		}
		return nil
	})

	// Each input has an entry, so that both lists have the same index.
	m.contents = append(m.contents, contents)
	return err
}

// appendPackedShape takes the dimensions of a packed shape.
func (t *input) appendPackedShape(packed []byte) error {
	for len(packed) > 0 {
		v, k := protowire.ConsumeVarint(packed)
		if k < 0 {
			return protowire.ParseError(k)
		}
		if err := t.appendDimension(v); err != nil {
			return err
		}
		packed = packed[k:]
	}
	return nil
}

func (t *input) appendDimension(n uint64) error {
	if len(t.shape) == dimsMax {
		return overLimit("shape", dimsMax)
	}
	t.shape = append(t.shape, int64(n))
	return nil
}

func (m *inferMessage) decodeOutput(msg []byte) error {
	if len(m.outputs) == tensorsMax {
		return overLimit("outputs", tensorsMax)
	}
	var o output

	err := eachField(msg, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		switch {
		case typ != protowire.BytesType:
		case num == 1:
			o.name = viewText(b)
		case num == 2:
			name, p, err := decodeParameter(b)
			switch {
			case err != nil:
				return err
			case name == "classification":
				n, _ := p.wholeNumber()
				m.keepFault(o.setClasses(n))
			case isMemoryParameter(name):
				m.keepFault(o.place.decodeGRPC(name, p))
			}
		}
		return nil
	})

	m.outputs = append(m.outputs, o)
	return err
}

// keepFault keeps the first fault of the parameters, which is answered once the message is read.
func (m *inferMessage) keepFault(f *fault) {
	if m.fault == nil {
		m.fault = f
	}
}

// resolveContents gives each input its elements: raw contents, or typed ones brought to the same form. Inputs in
// shared memory have neither, and no place among the raw contents.
func (m *inferMessage) resolveContents() *fault {
	if !utf8.ValidString(m.id) { // it is sent back, and must be a string there
		return invalidFault("id: %.40q: must be UTF-8", m.id)
	}

	want := 0
	for i := range m.inputs {
		if !m.inputs[i].place.named {
			want++
		}
	}
	if len(m.raws) > 0 && len(m.raws) != want {
		return invalidFault("raw_input_contents: %d tensors: must be one per input, %d (without those in shared memory), or none", len(m.raws), want)
	}

	// Raw contents come in the order of the inputs, those in shared memory left out.
	raws := m.raws
	for i := range m.inputs {
		t := &m.inputs[i]
		switch {
		case t.place.named:
			t.given = len(m.contents[i]) > 0 // which is refused where the region is looked up
		case len(m.raws) > 0 && len(m.contents[i]) > 0:
			return invalidFault("input %q: has contents besides raw_input_contents: give one", t.name)
		case len(m.raws) > 0:
			t.raw, t.given = raws[0], true
			raws = raws[1:]
		case m.contents[i] != nil:
			raw, f := typedContents(t, m.contents[i])
			if f != nil {
				return f
			}
			t.raw, t.given = raw, true
		}
	}
	return nil
}
