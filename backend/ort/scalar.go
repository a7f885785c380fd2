//go:build cgo

package ort

import (
	"errors"
	"unsafe"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/csrc/ortstring"
)

// scalar is a tensor without dimensions over one element of a slot. The binding cannot make one, so its other methods
// come from an embedded value.
type scalar struct {
	onnx.Value // of one element, over the same memory
	api        *ortstring.API
	tensor     unsafe.Pointer // an OrtValue
}

// noElements is the memory of tensors without elements: the binding needs an address for each.
var noElements [1]byte

// newTensor returns a tensor of a shape over memory; it may have no dimensions, or no elements.
func newTensor(api *ortstring.API, shape onnx.Shape, memory []byte, of onnx.TensorElementDataType) (onnx.Value, error) {
	if len(memory) == 0 {
		memory = noElements[:]
	}
	if len(shape) > 0 {
		return onnx.NewCustomDataTensor(shape, memory, of)
	}

	// The other value is over the same memory, but never used to read or write.
	other, err := onnx.NewCustomDataTensor(onnx.NewShape(1), memory, of)
	if err != nil {
		return nil, err
	}

	// If the library refuses the tensor itself, free the other value.
	tensor, err := api.NewScalar(memory, int(of))
	if err != nil {
		return nil, errors.Join(err, other.Destroy())
	}
	return &scalar{other, api, tensor}, nil
}

// GetShape returns no dimensions.
func (s *scalar) GetShape() onnx.Shape { return onnx.Shape{} }

// GetInternals returns the structure that the binding passes to ONNX Runtime: its single field is the OrtValue.
func (s *scalar) GetInternals() *onnx.ValueInternalData {
	// The field is private to the binding, so no other package can name it.
	d := new(onnx.ValueInternalData)
	*(*unsafe.Pointer)(unsafe.Pointer(d)) = s.tensor
	return d
}

// Destroy frees the tensor.
func (s *scalar) Destroy() error {
	s.api.FreeTensor(s.tensor)
	return s.Value.Destroy()
}
