package frontend

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"downbeat.dev/core/model"
)

// expectDatatype checks that the tensor exists and has one of the datatypes.
func (t Tensor) expectDatatype(goType string, allowed ...Datatype) error {
	if t.err != nil {
		return t.err
	}
	if !slices.Contains(allowed, t.info.Datatype) {
		return fmt.Errorf("%w: tensor %q: %s for %s: want one of %v", ErrInvalid, t.info.Name, goType, t.info.Datatype, allowed)
	}
	return nil
}

// expectInput is expectDatatype for setting n elements.
func (t Tensor) expectInput(goType string, n int, allowed ...Datatype) error {
	if err := t.expectDatatype(goType, allowed...); err != nil {
		return err
	}
	if t.input == nil && !t.loose {
		return fmt.Errorf("%w: tensor %q: an output cannot be set", ErrInvalid, t.info.Name)
	}
	if want := t.info.RowElements(); n != want {
		return fmt.Errorf("%w: tensor %q: %d elements: shape %v takes %d", ErrInvalid, t.info.Name, n, t.info.Shape, want)
	}
	return nil
}

// integers are the datatypes that SetInt64s and Int64s take.
var integers = []Datatype{model.Bool, model.Uint8, model.Uint16, model.Uint32, model.Uint64, model.Int8, model.Int16, model.Int32, model.Int64}

// SetFloat32s sets the elements of an FP32 input.
func (t Tensor) SetFloat32s(values []float32) error {
	if err := t.expectInput("[]float32", len(values), model.FP32); err != nil {
		return err
	}
	for i, v := range values {
		le.PutUint32(t.data[4*i:], math.Float32bits(v))
	}
	return nil
}

// Float32s returns a copy of the elements of an FP32 tensor.
func (t Tensor) Float32s() ([]float32, error) {
	if err := t.expectDatatype("[]float32", model.FP32); err != nil {
		return nil, err
	}

	values := make([]float32, len(t.data)/4)
	for i := range values {
		values[i] = math.Float32frombits(le.Uint32(t.data[4*i:]))
	}
	return values, nil
}

// SetInt64s sets the elements of an input of integers of any width, or of BOOL. If a value is outside the datatype's
// range, none is set.
func (t Tensor) SetInt64s(values []int64) error {
	if err := t.expectInput("[]int64", len(values), integers...); err != nil {
		return err
	}

	// All values are checked before the first is written: an error leaves the tensor unchanged.
	least, most := integerRange(t.info.Datatype)
	for i, v := range values {
		if v < least || v > most {
			return fmt.Errorf("%w: tensor %q: element %d: %d: %s is within %d and %d here", ErrInvalid, t.info.Name, i, v, t.info.Datatype, least, most)
		}
	}

	// A little-endian integer of any size is a prefix of the widest one.
	size := t.info.Datatype.Size()
	var wide [8]byte
	for i, v := range values {
		le.PutUint64(wide[:], uint64(v))
		copy(t.data[i*size:], wide[:size])
	}
	return nil
}

// integerRange returns the int64 values that fit the datatype.
func integerRange(t Datatype) (least, most int64) {
	bits := 8 * t.Size()
	switch t {
	case model.Bool:
		return 0, 1
	case model.Uint64:
		return 0, math.MaxInt64
	case model.Uint8, model.Uint16, model.Uint32:
		return 0, 1<<bits - 1
	}
	return -1 << (bits - 1), 1<<(bits-1) - 1
}

// Int64s returns a copy of the elements of a tensor of integers of any width, or of BOOL. A UINT64 above the largest
// int64 is an error.
func (t Tensor) Int64s() ([]int64, error) {
	if err := t.expectDatatype("[]int64", integers...); err != nil {
		return nil, err
	}

	size := t.info.Datatype.Size()
	least, _ := integerRange(t.info.Datatype)

	unused := 64 - 8*size
	values := make([]int64, len(t.data)/size)
	for i := range values {
		var wide [8]byte
		copy(wide[:], t.data[i*size:(i+1)*size])
		values[i] = int64(le.Uint64(wide[:]))
		if least < 0 {
			values[i] = values[i] << unused >> unused // extends the sign
		} else if values[i] < 0 {
			return nil, fmt.Errorf("%w: tensor %q: element %d: %d: want at most %d", ErrInvalid, t.info.Name, i, uint64(values[i]), int64(math.MaxInt64))
		}
	}
	return values, nil
}

// SetStrings sets the elements of a BYTES input. Tensors behind it move, to a larger buffer if necessary, so slices
// from earlier calls of Bytes become invalid.
func (t Tensor) SetStrings(values []string) error {
	if err := t.expectInput("[]string", len(values), model.Bytes); err != nil {
		return err
	}
	size := 0
	for _, v := range values {
		size += model.TextLengthBytes + len(v)
	}

	room, err := t.resizeTo(size)
	if err != nil {
		return err
	}

	// The size is known, so appending stays within the tensor's room.
	room = room[:0]
	for _, v := range values {
		room = model.AppendText(room, v)
	}
	return nil
}

// Strings returns the elements of a BYTES tensor.
func (t Tensor) Strings() ([]string, error) {
	if err := t.expectDatatype("[]string", model.Bytes); err != nil {
		return nil, err
	}
	values := make([]string, 0, t.info.RowElements())
	for rest := t.data; len(rest) > 0; {
		var text []byte
		text, rest, _ = model.NextText(rest) // cannot fail: findTensor has counted them
		values = append(values, string(text))
	}
	return values, nil
}

// SetBytes sets an input from elements in the format of Bytes. They must not lie in the same Buffer.
func (t Tensor) SetBytes(raw []byte) error {
	switch {
	case t.err != nil:
		return t.err
	case t.input == nil && !t.loose:
		return fmt.Errorf("%w: tensor %q: an output cannot be set", ErrInvalid, t.info.Name)
	case !t.info.Varies() && len(raw) != len(t.data):
		return fmt.Errorf("%w: tensor %q: %d bytes: shape %v of %s takes %d", ErrInvalid, t.info.Name, len(raw), t.info.Shape, t.info.Datatype, len(t.data))
	case !t.info.Varies():
		copy(t.data, raw)
		return nil
	}

	if n, whole := model.CountTexts(raw); !whole || n != t.info.RowElements() {
		return fmt.Errorf("%w: tensor %q: %d whole elements in %d bytes: shape %v takes %d and nothing more", ErrInvalid, t.info.Name, n, len(raw), t.info.Shape, t.info.RowElements())
	}
	room, err := t.resizeTo(len(raw))
	if err != nil {
		return err
	}
	copy(room, raw)
	return nil
}

// resizeTo makes room for elements of n bytes instead of the present ones.
func (t Tensor) resizeTo(n int) ([]byte, error) {
	switch {
	case t.input != nil:
		return t.input.resizeTensor(t.index, n)
	case n != len(t.data):
		return nil, fmt.Errorf("%w: tensor %q: elements of %d bytes in place of %d", ErrInvalid, t.info.Name, n, len(t.data))
	}
	return t.data, nil
}

// resizeTensor makes room for a tensor of n bytes instead of the present one, and moves the tensors behind it.
func (b *Buffer) resizeTensor(index, n int) ([]byte, error) {
	start, end, ok := locateTensor(b.model.Inputs, b.Bytes(), index)
	if !ok {
		return nil, fmt.Errorf("%w: model %q: the input's %d bytes are not its tensors", ErrInvalid, b.model.Name, b.size)
	}

	// The tensors behind it move by as much as it grows or shrinks.
	size := b.size - (end - start) + n
	if size <= len(b.mem.Bytes()) {
		before := b.Bytes()
		b.size = size
		copy(b.Bytes()[start+n:], before[end:])
		return b.Bytes()[start:][:n:n], nil
	}

	// Backends may be reading a request's buffer, so only an unused one may be replaced.
	if b.busy.Load() {
		return nil, errors.Join(ErrInvalid, errors.New("input: a request has this Buffer: set its tensors before"))
	}

	// Half as much again, so that setting tensors one by one does not move the buffer each time.
	larger, err := b.of.node.Alloc(size + size/2)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	copy(larger.Bytes(), b.Bytes()[:start])
	copy(larger.Bytes()[start+n:], b.Bytes()[end:])
	b.mem.Free()
	b.mem, b.size = larger, size
	return b.Bytes()[start:][:n:n], nil
}

// TensorOf returns a tensor over the caller's bytes, to read and set elements; BYTES elements must keep their total
// size. A wrong number of bytes, or a nil info, makes its methods return an error. Most programs need only NewInput
// and Output.
func TensorOf(info *TensorInfo, data []byte) Tensor {
	if info == nil {
		return Tensor{err: fmt.Errorf("%w: the model has no such tensor", ErrInvalid)}
	}
	if n, whole := model.CountTexts(data); info.Varies() && (!whole || n != info.RowElements()) {
		return Tensor{err: fmt.Errorf("%w: tensor %q: %d bytes are not the elements of shape %v", ErrInvalid, info.Name, len(data), info.Shape)}
	}
	if !info.Varies() && len(data) != info.RowBytes() {
		return Tensor{err: fmt.Errorf("%w: tensor %q: %d bytes: shape %v of %s takes %d", ErrInvalid, info.Name, len(data), info.Shape, info.Datatype, info.RowBytes())}
	}
	return Tensor{info: info, data: data, loose: true}
}
