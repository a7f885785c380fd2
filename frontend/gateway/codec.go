package gateway

import (
	"fmt"
	"math"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"  // takes packed requests
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that leanCodec falls back to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// leanCodec decodes inference requests without copying tensors and encodes their responses in one
// pass; every other message goes through grpc's own codec. The bytes on the wire are the same.
type leanCodec struct{ proto encoding.CodecV2 }

func newLeanCodec() leanCodec { return leanCodec{encoding.GetCodecV2("proto")} }

func (leanCodec) Name() string { return "proto" }

func (c leanCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*inferMessage)
	if !ok {
		return c.proto.Unmarshal(data, v)
	}
	m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return m.decode(m.buf.ReadOnlyData())
}

func (c leanCodec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*inferReply)
	if !ok {
		return c.proto.Marshal(v)
	}
	size := r.measure()
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	out := r.append((*b)[:0])
	if len(out) != size {
		return nil, fmt.Errorf("response of %d bytes was measured as %d", len(out), size)
	}
	*b = out
	r.release()
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
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

// release ends the message; it may be used for another.
func (m *inferMessage) release() {
	if m.buf != nil {
		m.buf.Free()
	}
	m.inference.reset()
	clear(m.raws)
	clear(m.contents)
	m.name, m.version, m.raws, m.contents, m.fault, m.buf = "", "", m.raws[:0], m.contents[:0], nil, nil
	messages.Put(m)
}

// fields calls each for every field of an encoded message; n is the value of a varint or a fixed
// field, b the bytes of a length-delimited one.
func fields(msg []byte, each func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error) error {
	for len(msg) > 0 {
		num, typ, k := protowire.ConsumeTag(msg)
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

func (m *inferMessage) decode(msg []byte) error {
	return fields(msg, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		if typ != protowire.BytesType {
			return nil
		}
		switch num {
		case 1:
			m.name = view(b)
		case 2:
			m.version = view(b)
		case 3:
			m.id = view(b)
		case 4:
			name, p, err := decodeParameter(b)
			if f := m.apply(name, p); f != nil && m.fault == nil {
				m.fault = f
			}
			return err
		case 5:
			return m.decodeInput(b)
		case 6:
			return m.decodeOutput(b)
		case 7:
			m.raws = append(m.raws, b)
		}
		return nil
	})
}

// apply takes one request parameter.
func (m *inferMessage) apply(name string, p parameter) *fault {
	switch name {
	case "timeout", "priority", "sequence_id":
		n, ok := p.whole()
		if !ok {
			return invalid("parameter %s: must be an int64_param or a uint64_param", name)
		}
		return m.inference.parameter(name, n)
	}
	return nil
}

// parameter is a decoded InferParameter: num tells which of its choices is set.
type parameter struct {
	num protowire.Number
	n   uint64
}

// whole is the parameter as a whole number. A uint64 above int64 saturates: no limit lies there.
func (p parameter) whole() (int64, bool) {
	switch p.num {
	case 2:
		return int64(p.n), true
	case 5:
		return int64(min(p.n, math.MaxInt64)), true
	}
	return 0, false
}

// decodeParameter decodes an entry of a map of parameters.
func decodeParameter(entry []byte) (name string, p parameter, err error) {
	err = fields(entry, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		switch {
		case num == 1 && typ == protowire.BytesType:
			name = view(b)
		case num == 2 && typ == protowire.BytesType:
			return fields(b, func(num protowire.Number, _ protowire.Type, n uint64, _ []byte) error {
				p = parameter{num, n}
				return nil
			})
		}
		return nil
	})
	return name, p, err
}

func (m *inferMessage) decodeInput(msg []byte) error {
	n := len(m.inputs)
	if n < cap(m.inputs) {
		m.inputs = m.inputs[:n+1]
	} else {
		m.inputs = append(m.inputs, input{})
	}
	t := &m.inputs[n]
	var contents []byte
	err := fields(msg, func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error {
		switch {
		case num == 3 && typ == protowire.VarintType:
			t.shape = append(t.shape, int64(n))
		case typ != protowire.BytesType:
		case num == 1:
			t.name = view(b)
		case num == 2:
			t.datatype = view(b)
		case num == 3:
			for len(b) > 0 {
				v, k := protowire.ConsumeVarint(b)
				if k < 0 {
					return protowire.ParseError(k)
				}
				t.shape, b = append(t.shape, int64(v)), b[k:]
			}
		case num == 5:
			contents = b
			if b == nil {
				contents = []byte{}
			}
		}
		return nil
	})
	m.contents = append(m.contents, contents)
	return err
}

func (m *inferMessage) decodeOutput(msg []byte) error {
	var o output
	err := fields(msg, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		switch {
		case typ != protowire.BytesType:
		case num == 1:
			o.name = view(b)
		case num == 2:
			name, p, err := decodeParameter(b)
			if err != nil || name != "classification" {
				return err
			}
			n, _ := p.whole()
			if f := o.classification(n); f != nil && m.fault == nil {
				m.fault = f
			}
		}
		return nil
	})
	m.outputs = append(m.outputs, o)
	return err
}

// settle gives each input its elements: raw contents, or typed ones brought to the same form.
func (m *inferMessage) settle() *fault {
	if m.fault != nil {
		return m.fault
	}
	if !utf8.ValidString(m.id) { // it is sent back, and must be a string there
		return invalid("id: %.40q: must be UTF-8", m.id)
	}
	if len(m.inputs) > tensorsMax || len(m.outputs) > tensorsMax {
		return invalid("inputs, outputs: %d and %d tensors: must be at most %d", len(m.inputs), len(m.outputs), tensorsMax)
	}
	if len(m.raws) > 0 && len(m.raws) != len(m.inputs) {
		return invalid("raw_input_contents: %d tensors: must be one per input, %d, or none", len(m.raws), len(m.inputs))
	}
	for i := range m.inputs {
		t := &m.inputs[i]
		switch {
		case len(m.raws) > 0 && len(m.contents[i]) > 0:
			return invalid("input %q: has contents besides raw_input_contents: give one", t.name)
		case len(m.raws) > 0:
			t.raw, t.given = m.raws[i], true
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
