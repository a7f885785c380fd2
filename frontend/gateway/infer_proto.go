package gateway

import (
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	_ "google.golang.org/grpc/encoding/gzip"
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// inferMessage is a ModelInferRequest as received: its strings and tensors point into buf until release.
type inferMessage struct {
	inference
	name, version string
	raws          [][]byte // raw_input_contents
	contents      [][]byte // InferTensorContents of each input, encoded; nil: none
	fault         *fault   // of an invalid parameter
	buf           mem.Buffer
	reply         inferReply // to this message
}

var messages = sync.Pool{New: func() any {
	m := new(inferMessage)
	m.reply.inferMessage = m
	return m
}}

// releaseMessage ends the message and makes it reusable.
func (m *inferMessage) releaseMessage() {
	if m.buf != nil {
		m.buf.Free()
	}

	// All fields below point into buf: a pooled message must not keep that memory alive.
	m.inference.resetCall()
	clear(m.raws)
	clear(m.contents)
	m.reply.answer, m.reply.call = answer{}, nil
	m.name, m.version, m.raws, m.contents, m.fault, m.buf = "", "", m.raws[:0], m.contents[:0], nil, nil

	// After a call of a thousand rows, calls of one row must not keep its memory.
	if !m.inference.isLarge() {
		messages.Put(m)
	}
}

// errLimit is wrapped by the errors that refuse a message for its counts while it is decoded. Each tensor takes more
// memory than its two bytes on the wire, so counts must be bounded before the whole message is read.
var errLimit = errors.New("too many")

func overLimit(what string, limit int) error {
	return fmt.Errorf("%s: %w: must be at most %d", what, errLimit, limit)
}

func (m *inferMessage) decodeMessage(msg []byte) error {
	return eachField(msg, func(num protowire.Number, typ protowire.Type, _ uint64, b []byte) error {
		// Every field of the request is length-delimited; any other field is unknown and skipped.
		if typ != protowire.BytesType {
			return nil
		}

		// The numbers are those of ModelInferRequest.
		switch num {
		case 1:
			return takeName(&m.name, "model_name", b)
		case 2:
			return takeName(&m.version, "model_version", b)
		case 3:
			return takeName(&m.id, "id", b)
		case 4:
			// Decoding continues after a fault: a stream's error names the request's id, which may follow.
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

// takeName takes a name from a message. Errors repeat names, and a long error breaks a caller's whole connection: gRPC
// sends it in a header.
func takeName[T ~string](to *T, what string, b []byte) error {
	if len(b) > nameMax {
		return fmt.Errorf("%s: %d bytes: must be at most %d", what, len(b), nameMax)
	}
	*to = T(viewText(b))
	return nil
}

// applyParameter applies one request parameter.
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

	// Parameters of unsupported extensions do not change the answer.
	return nil
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
			// Writers need not pack repeated numbers, and readers must accept both forms.
			return t.appendDimension(n)
		case typ != protowire.BytesType:
		case num == 1:
			return takeName(&t.name, "input name", b)
		case num == 2:
			return takeName(&t.datatype, "input datatype", b)
		case num == 3:
			return t.appendPackedShape(b)
		case num == 4:
			name, p, err := decodeParameter(b)
			if err != nil || !isMemoryParameter(name) {
				return err
			}
			m.keepFault(t.place.decodeGRPC(name, p))
		case num == 5:
			// An empty message differs from an absent one, which is nil.
			contents = b
			if b == nil {
				contents = []byte{}
			}
		}
		return nil
	})

	// Each input gets an entry, so both lists have the same index.
	m.contents = append(m.contents, contents)
	return err
}

// appendPackedShape appends the dimensions of a packed shape.
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
			return takeName(&o.name, "output name", b)
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

// keepFault keeps the first fault of the parameters, to answer with it once the message is read.
func (m *inferMessage) keepFault(f *fault) {
	if m.fault == nil {
		m.fault = f
	}
}

// resolveContents gives each input its elements: raw contents, or typed ones converted to raw. Inputs in shared
// memory have neither, and no entry among the raw contents.
func (m *inferMessage) resolveContents() *fault {
	if !utf8.ValidString(m.id) { // the response repeats it, and must hold valid UTF-8
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

	// Raw contents come in the order of the inputs, without those in shared memory.
	raws := m.raws
	for i := range m.inputs {
		t := &m.inputs[i]
		switch {
		case t.place.named:
			t.given = len(m.contents[i]) > 0 // an input with both is refused when its region is looked up
		case len(m.raws) > 0 && len(m.contents[i]) > 0:
			return invalidFault("input %q: has contents besides raw_input_contents: give one", t.name)
		case len(m.raws) > 0:
			t.raw, t.given = raws[0], true
			raws = raws[1:]
		case m.contents[i] != nil:
			raw, f := m.typedContents(t, m.contents[i])
			if f != nil {
				return f
			}
			t.raw, t.given = raw, true
		}
	}
	return nil
}
