package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// decoder counts down the remaining parts of one model, and their remaining memory.
type decoder struct {
	left    int
	room    int // bytes
	nesting int
}

// wireField is one field of the file: num holds a varint or fixed value, bytes the rest.
type wireField struct {
	number protowire.Number
	kind   protowire.Type
	num    uint64
	bytes  []byte
}

var errKind = errors.New("a field has the wrong wire type")

// eachField calls f for every field of a message.
func (d *decoder) eachField(b []byte, f func(wireField) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]

		w := wireField{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			w.num, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			w.num = uint64(v)
		case protowire.Fixed64Type:
			w.num, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			w.bytes, n = protowire.ConsumeBytes(b)
		default:
			// ONNX has no groups, but protobuf requires readers to skip them.
			n = protowire.ConsumeFieldValue(number, kind, b)
		}

		if n < 0 {
			return protowire.ParseError(n)
		}

		b = b[n:]
		if err := f(w); err != nil {
			return err
		}
	}
	return nil
}

// takePart returns the content of a sub-message or string and charges it to the limit.
func (d *decoder) takePart(w wireField) ([]byte, error) {
	if w.kind != protowire.BytesType {
		return nil, fmt.Errorf("field %d: %w", w.number, errKind)
	}

	// An empty part takes two bytes of a file, but much more memory.
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("more than %d parts", partsMax)
	}
	return w.bytes, nil
}

// setText and setInt set scalar fields.
func (d *decoder) setText(out *string, w wireField) error {
	b, err := d.takePart(w)
	*out = string(b)
	return err
}

func (d *decoder) setInt(out *int64, w wireField) error {
	if w.kind != protowire.VarintType {
		return fmt.Errorf("field %d: %w", w.number, errKind)
	}
	*out = int64(w.num)
	return nil
}

// appendInts reads repeated varints, packed or not.
func appendInts(out []int64, w wireField) ([]int64, error) {
	switch w.kind {
	case protowire.VarintType:
		return append(out, int64(w.num)), nil
	case protowire.BytesType:
		// Packed numbers follow one another without tags.
		for b := w.bytes; len(b) > 0; {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return out, protowire.ParseError(n)
			}
			out, b = append(out, int64(v)), b[n:]
		}
		return out, nil
	}
	return out, fmt.Errorf("field %d: %w", w.number, errKind)
}

// appendFixed reads repeated 4- or 8-byte values, packed or not, as little-endian bytes.
func appendFixed(out []byte, w wireField, size int) ([]byte, error) {
	switch {
	case w.kind == protowire.Fixed32Type && size == 4:
		return binary.LittleEndian.AppendUint32(out, uint32(w.num)), nil
	case w.kind == protowire.Fixed64Type && size == 8:
		return binary.LittleEndian.AppendUint64(out, w.num), nil
	case w.kind == protowire.BytesType && len(w.bytes)%size == 0:
		return append(out, w.bytes...), nil
	}
	return out, fmt.Errorf("field %d: %w", w.number, errKind)
}

// addPart decodes one sub-message of a repeated field.
func addPart[T any](d *decoder, out *[]T, w wireField, decode func([]byte) (T, error)) error {
	b, err := d.takePart(w)
	if err != nil {
		return err
	}

	v, err := decode(b)
	if err != nil {
		return err
	}

	*out = append(*out, v)
	return d.chargeBytes(unsafe.Sizeof(v))
}

// chargeBytes subtracts the memory of one part from the remaining room.
func (d *decoder) chargeBytes(bytes uintptr) error {
	if d.room -= int(bytes); d.room < 0 {
		return errors.New("its parts are too many for its bytes: most of them are empty")
	}
	return nil
}

func (d *decoder) takeText(b []byte) (string, error) { return string(b), nil }

func (d *decoder) takeBytes(b []byte) ([]byte, error) { return b, nil }
