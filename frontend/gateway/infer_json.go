package gateway

import (
	"strconv"

	"downbeat.dev/core/model"
)

// parseRequest reads an inference request object and the binary tensors after it. The parsed request points into text
// and tail.
func (in *inference) parseRequest(text, tail []byte) *fault {
	s := &jsonScanner{text: text}
	s.eachMember(func(key string) {
		switch key {
		case "id":
			in.id = s.readName(key)
		case "parameters":
			s.refuse(in.parseParameters(s))
		case "inputs":
			s.eachElement(func() { tail = in.parseInput(s, tail) })
		case "outputs":
			s.eachElement(func() { s.refuse(in.parseOutput(s)) })
		default:
			s.skipAny()
		}
	})

	f := s.finish()
	if f == nil && len(tail) > 0 {
		f = invalidFault("body: %d bytes of binary data are left over: the inputs' binary_data_size must add up to all of it", len(tail))
	}
	return f
}

// takeRaw reads a raw binary request: without JSON, the body is one row of the model's only input, and the answer has
// every output as binary. The body of a BYTES input is its one element, without a length prefix.
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

// parseInput reads one input and returns its data, which is parsed once the datatype is known.
func (in *inference) parseInput(s *jsonScanner, tail []byte) []byte {
	if len(in.inputs) >= tensorsMax {
		s.refuse(invalidFault("inputs: more than %d tensors", tensorsMax))
		return tail
	}

	var t input
	var data []byte
	size := int64(-1)

	s.eachMember(func(key string) {
		switch key {
		case "name":
			t.name = s.readName(key)
		case "datatype":
			t.datatype = model.Datatype(s.readName(key))
		case "shape":
			t.shape = in.readShape(s)
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
					s.refuse(t.place.parseJSON(s, key))
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

	// Binary data follows the JSON in the order of the inputs: each input takes its part of the rest.
	switch {
	case size >= 0 && data != nil:
		s.refuse(invalidFault("input %q: has data and binary_data_size: give one", t.name))
	case size > int64(len(tail)):
		s.refuse(invalidFault("input %q: parameter binary_data_size: %d: only %d bytes of binary data are left", t.name, size, len(tail)))
	case size >= 0:
		t.raw, t.given = tail[:size], true
		tail = tail[size:]
	case data != nil:
		s.refuse(in.parseData(&t, data))
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

	// Eight bytes more than the limit: an element that exceeds it is noticed after it was appended.
	s := &jsonScanner{text: data, nonFinite: true}
	t.raw, t.given, t.json = s.tensorData(make([]byte, 0, limit+8), t.datatype, limit, 0), true, true
	if s.err != nil {
		return invalidFault("input %q: %v", t.name, s.err)
	}
	return nil
}

// hintSlack lets slightly too long data be parsed, so that the error can say by how much it is too long.
const hintSlack = 1024

// sizeHint returns the bytes of a tensor by its shape; 0 if the shape does not determine them.
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

// readShape reads a shape into the memory shared by the call's shapes.
func (in *inference) readShape(s *jsonScanner) []int64 {
	all := in.room.dims
	first := len(all)
	s.eachElement(func() {
		n := s.readInteger()

		// A zero takes two bytes of JSON and eight of memory, so bound the count while it grows.
		if len(all)-first >= dimsMax {
			s.failAt("shape: more than %d dimensions", dimsMax)
			return
		}
		if s.err == nil && n < 0 {
			s.failAt("shape: %d: dimensions must be 0 or more", n)
		}
		all = append(all, n)
	})

	// If the array was reallocated, earlier shapes stay in the old memory.
	in.room.dims = all
	return all[first:len(all):len(all)]
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
			o.name = s.readName(key)
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

	// The error names the output, and the name may be the last member.
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
