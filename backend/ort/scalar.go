//go:build cgo

package ort

import (
	"errors"
	"unsafe"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/csrc/ortstring"
)

// scalar is a tensor without dimensions over one element of a slot. The binding makes none, so that what it wants of a value
// beside the tensor itself is that of another one.
type scalar struct {
	onnx.Value // of one element, in memory of its own
	api        *ortstring.API
	tensor     unsafe.Pointer // an OrtValue
}

// noElements is the memory of tensors without elements: the binding wants an address of each.
var noElements [1]byte

// newTensor makes a tensor of a shape over memory; it may have no dimensions, or no elements.
func newTensor(api *ortstring.API, shape onnx.Shape, memory []byte, of onnx.TensorElementDataType) (onnx.Value, error) {
	if len(memory) == 0 {
		memory = noElements[:]
	}
	if len(shape) > 0 {
		return onnx.NewCustomDataTensor(shape, memory, of)
	}

	// The other value is over the same memory: nobody reads or writes through it.
	other, err := onnx.NewCustomDataTensor(onnx.NewShape(1), memory, of)
	if err != nil {
		return nil, err
	}

	// What was made so far is freed where the library refuses the tensor itself.
	tensor, err := api.NewScalar(memory, int(of))
	if err != nil {
		return nil, errors.Join(err, other.Destroy())
	}
	return &scalar{other, api, tensor}, nil
}

// GetShape returns no dimensions.
func (s *scalar) GetShape() onnx.Shape { return onnx.Shape{} }

// GetInternals returns what the binding hands to ONNX Runtime: its one field is the OrtValue.
func (s *scalar) GetInternals() *onnx.ValueInternalData {
	// The field is the binding's own: nobody else can name it.
	d := new(onnx.ValueInternalData)
	*(*unsafe.Pointer)(unsafe.Pointer(d)) = s.tensor
	return d
}

// Destroy frees the tensor.
func (s *scalar) Destroy() error {
	s.api.FreeTensor(s.tensor)
	return s.Value.Destroy()
}
