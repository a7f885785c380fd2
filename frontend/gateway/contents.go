package gateway

import (
	"google.golang.org/protobuf/encoding/protowire"

	"downbeat.dev/core/model"
)

// contentsField returns the field of InferTensorContents that holds a datatype's elements.
func contentsField(datatype model.Datatype) (protowire.Number, string) {
	// The numbers are those of InferTensorContents, which has one field for several widths.
	switch datatype {
	case model.Bool:
		return 1, "bool_contents"
	case model.Int8, model.Int16, model.Int32:
		return 2, "int_contents"
	case model.Int64:
		return 3, "int64_contents"
	case model.Uint8, model.Uint16, model.Uint32:
		return 4, "uint_contents"
	case model.Uint64:
		return 5, "uint64_contents"
	case model.FP32:
		return 6, "fp32_contents"
	case model.FP64:
		return 7, "fp64_contents"
	case model.Bytes:
		return 8, "bytes_contents"
	}
	return 0, ""
}

// contentsLimit bounds the raw elements of typed contents of n encoded bytes: an element takes a byte there and its size
// here, a text two bytes and a length of four.
func contentsLimit(t *input, n int) int {
	limit := n * max(t.datatype.Size(), 2)
	if hint := sizeHint(t); hint > 0 {
		limit = min(limit, hint+hintSlack)
	}
	return limit
}

// typedContents converts an encoded InferTensorContents to raw elements. The call counts their memory.
func (in *inference) typedContents(t *input, msg []byte) ([]byte, *fault) {
	want, field := contentsField(t.datatype)
	if want == 0 {
		return nil, invalidFault("input %q: datatype %q has no typed contents: use raw_input_contents", t.name, t.datatype)
	}

	limit := contentsLimit(t, len(msg))
	if f := in.takeBytes(int64(limit)); f != nil {
		return nil, f
	}

	// Eight bytes more than the limit: an element that exceeds it is noticed after it was appended.
	raw := make([]byte, 0, limit+8)
	var fail *fault

	// A repeated field may be packed, unpacked or mixed: append each part in order.
	err := eachField(msg, func(num protowire.Number, typ protowire.Type, n uint64, b []byte) error {
		switch {
		case fail != nil:
		case num != want:
			fail = invalidFault("input %q: contents: %s elements lie in %s, and another field is set", t.name, t.datatype, field)
		case t.datatype == model.Bytes && typ == protowire.BytesType:
			raw = append(le.AppendUint32(raw, uint32(len(b))), b...)
		case typ == protowire.BytesType:
			raw, fail = appendPacked(raw, b, t, limit)
		default:
			raw, fail = appendVarint(raw, n, t)
		}
		if fail == nil && len(raw) > limit {
			fail = excessFault(t)
		}
		return nil
	})

	if err != nil && fail == nil {
		fail = invalidFault("input %q: contents: %v", t.name, err)
	}
	return raw, fail
}

func excessFault(t *input) *fault {
	return invalidFault("input %q: contents: more elements than shape %v takes", t.name, t.shape)
}

// appendPacked appends a packed field's elements, as long as the raw elements have at most limit bytes. Floats already
// have their raw form.
func appendPacked(raw, b []byte, t *input, limit int) ([]byte, *fault) {
	if t.datatype == model.FP32 || t.datatype == model.FP64 {
		if len(b) > limit-len(raw) {
			return raw, excessFault(t)
		}
		return append(raw, b...), nil
	}

	for len(b) > 0 {
		// An element takes one byte of the message and up to eight raw, so that the message's length bounds nothing here.
		if len(raw) > limit {
			return raw, excessFault(t)
		}

		n, k := protowire.ConsumeVarint(b)
		if k < 0 {
			return raw, invalidFault("input %q: contents: %v", t.name, protowire.ParseError(k))
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
	case model.FP32:
		// An unpacked float is a fixed field, and n holds its bits.
		return le.AppendUint32(raw, uint32(n)), nil
	case model.FP64, model.Uint64:
		return le.AppendUint64(raw, n), nil
	case model.Bytes:
		return raw, invalidFault("input %q: contents: bytes_contents holds a number", t.name)
	}

	// The protocol's fields are wider than the datatypes: refuse a value that would be truncated.
	out, ok := appendInteger(raw, int64(n), t.datatype)
	if !ok {
		return raw, invalidFault("input %q: contents: %d is not a value of %s", t.name, int64(n), t.datatype)
	}
	return out, nil
}

// inferReply is a ModelInferResponse: the call's identity and its outputs, always raw. It owns the message that it
// answers.
type inferReply struct {
	*inferMessage
	answer answer
	call   *rpcCall // nil: the call has no gRPC connection
}

// releaseReply ends the reply and the message.
func (r *inferReply) releaseReply() {
	// The answer's results lie in the message, so release them before the message is cleared.
	r.answer.releaseOutputs()
	r.inferMessage.releaseMessage()
}

const tagBytes = 1 // every field number of the response is below 16

func stringSize(s string) int {
	// proto3 omits empty strings, and so does appendString.
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
	n := stringSize(r.outputs[i].name) + stringSize(string(datatype))
	if len(shape) > 0 {
		n += tagBytes + protowire.SizeBytes(shapeSize(shape))
	}
	return n
}

// measure returns the number of bytes that append will append.
func (r *inferReply) measure() int {
	in := &r.inference
	n := stringSize(in.model.Name) + stringSize(in.model.Version) + stringSize(in.id)

	// The variant's parameters are few bytes and rare, so encoding them is the simplest way to measure them.
	if v := r.answer.variant(in); v != nil {
		n += len(appendVariantProto(nil, v))
	}

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
	if v := r.answer.variant(in); v != nil {
		b = appendVariantProto(b, v)
	}

	for i, o := range in.outputs {
		// A message's length precedes it, so measure each output first.
		b = protowire.AppendTag(b, 5, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(r.outputSize(i)))
		shape, datatype := in.shapeOf(i)
		b = appendString(b, 1, o.name)
		b = appendString(b, 2, string(datatype))

		if len(shape) > 0 {
			b = protowire.AppendTag(b, 3, protowire.BytesType)
			b = protowire.AppendVarint(b, uint64(shapeSize(shape)))
			for _, d := range shape {
				b = protowire.AppendVarint(b, uint64(d))
			}
		}
	}

	// One raw_output_contents for each output, in the same order.
	for _, raw := range r.answer.raw {
		b = protowire.AppendTag(b, 6, protowire.BytesType)
		b = protowire.AppendBytes(b, raw)
	}
	return b
}

// streamReply is a ModelStreamInferResponse that holds a response. Every request of a stream gets exactly one answer,
// marked as the final one: clients of models that may send more wait for that mark.
type streamReply struct{ *inferReply }

// finalResponse is the encoded parameter triton_final_response, true, of ModelInferResponse.
var finalResponse = func() []byte {
	isTrue := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	entry := appendString(nil, 1, "triton_final_response")
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), isTrue)
	return protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), entry)
}()

func (r streamReply) responseSize() int { return r.inferReply.measure() + len(finalResponse) }

func (r streamReply) measure() int { return tagBytes + protowire.SizeBytes(r.responseSize()) }

func (r streamReply) append(b []byte) []byte {
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(r.responseSize()))

	// The parameter may follow the response's own fields: protobuf accepts fields in any order.
	return append(r.inferReply.append(b), finalResponse...)
}
