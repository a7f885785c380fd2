package gateway

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// contentsField names the field of InferTensorContents that holds a datatype's elements.
func contentsField(datatype string) (protowire.Number, string) {
	switch datatype {
	case "BOOL":
		return 1, "bool_contents"
	case "INT8", "INT16", "INT32":
		return 2, "int_contents"
	case "INT64":
		return 3, "int64_contents"
	case "UINT8", "UINT16", "UINT32":
		return 4, "uint_contents"
	case "UINT64":
		return 5, "uint64_contents"
	case "FP32":
		return 6, "fp32_contents"
	case "FP64":
		return 7, "fp64_contents"
	case "BYTES":
		return 8, "bytes_contents"
	}
	return 0, ""
}

// typedContents brings an encoded InferTensorContents to raw elements.
func typedContents(t *input, msg []byte) ([]byte, *fault) {
	want, field := contentsField(t.datatype)
	if want == 0 {
		return nil, invalid("input %q: datatype %q has no typed contents: use raw_input_contents", t.name, t.datatype)
	}
	var raw []byte
	var fail *fault
	err := fields(msg, func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error {
		switch {
		case fail != nil:
		case num != want:
			fail = invalid("input %q: contents: %s elements lie in %s, and another field is set", t.name, t.datatype, field)
		case t.datatype == "BYTES" && typ == protowire.BytesType:
			raw = append(le.AppendUint32(raw, uint32(len(b))), b...)
		case typ == protowire.BytesType:
			raw, fail = appendPacked(raw, b, t)
		default:
			raw, fail = appendVarint(raw, n, t)
		}
		return nil
	})
	if err != nil && fail == nil {
		fail = invalid("input %q: contents: %v", t.name, err)
	}
	return raw, fail
}

// appendPacked appends a packed field's elements. Floats are already in their raw form.
func appendPacked(raw, b []byte, t *input) ([]byte, *fault) {
	if t.datatype == "FP32" || t.datatype == "FP64" {
		return append(raw, b...), nil
	}
	for len(b) > 0 {
		n, k := protowire.ConsumeVarint(b)
		if k < 0 {
			return raw, invalid("input %q: contents: %v", t.name, protowire.ParseError(k))
		}
		var f *fault
		if raw, f = appendVarint(raw, n, t); f != nil {
			return raw, f
		}
		b = b[k:]
	}
	return raw, nil
}

func appendVarint(raw []byte, n uint64, t *input) ([]byte, *fault) {
	switch t.datatype {
	case "FP32":
		return le.AppendUint32(raw, uint32(n)), nil
	case "FP64", "UINT64":
		return le.AppendUint64(raw, n), nil
	case "BYTES":
		return raw, invalid("input %q: contents: bytes_contents holds a number", t.name)
	}
	out, ok := appendInteger(raw, int64(n), t.datatype)
	if !ok {
		return raw, invalid("input %q: contents: %d is not a value of %s", t.name, int64(n), t.datatype)
	}
	return out, nil
}

// inferReply is a ModelInferResponse: what a call was and its outputs, always raw. The message that
// it answers belongs to it.
type inferReply struct {
	*inferMessage
	answer answer
}

// release ends the reply and the message.
func (r *inferReply) release() {
	r.answer.release()
	r.answer = answer{}
	r.inferMessage.release()
}

const tagBytes = 1 // every field number of the response is below 16

func stringSize(s string) int {
	if s == "" {
		return 0
	}
	return tagBytes + protowire.SizeBytes(len(s))
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func shapeSize(shape []int64) int {
	n := 0
	for _, d := range shape {
		n += protowire.SizeVarint(uint64(d))
	}
	return n
}

func (r *inferReply) outputSize(i int) int {
	shape, datatype := r.shapeOf(i)
	n := stringSize(r.outputs[i].name) + stringSize(datatype)
	if len(shape) > 0 {
		n += tagBytes + protowire.SizeBytes(shapeSize(shape))
	}
	return n
}

// measure returns the bytes that append will append.
func (r *inferReply) measure() int {
	in := &r.inference
	n := stringSize(in.model.Name) + stringSize(in.model.Version) + stringSize(in.id)
	for i := range in.outputs {
		n += tagBytes + protowire.SizeBytes(r.outputSize(i))
		n += tagBytes + protowire.SizeBytes(len(r.answer.raw[i]))
	}
	return n
}

func (r *inferReply) append(b []byte) []byte {
	in := &r.inference
	b = appendString(b, 1, in.model.Name)
	b = appendString(b, 2, in.model.Version)
	b = appendString(b, 3, in.id)
	for i, o := range in.outputs {
		b = protowire.AppendTag(b, 5, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(r.outputSize(i)))
		shape, datatype := in.shapeOf(i)
		b = appendString(b, 1, o.name)
		b = appendString(b, 2, datatype)
		if len(shape) > 0 {
			b = protowire.AppendTag(b, 3, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(shapeSize(shape)))
			for _, d := range shape {
				b = protowire.AppendVarint(b, uint64(d))
			}
		}
	}
	for _, raw := range r.answer.raw {
		b = protowire.AppendTag(b, 6, protowire.BytesType)
		b = protowire.AppendBytes(b, raw)
	}
	return b
}
