package onnx

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"downbeat.dev/core/model"
)

// DataType is ONNX's TensorProto.DataType.
type DataType int32

// The element types.
const (
	Undefined  DataType = 0
	Float      DataType = 1
	Uint8      DataType = 2
	Int8       DataType = 3
	Uint16     DataType = 4
	Int16      DataType = 5
	Int32      DataType = 6
	Int64      DataType = 7
	String     DataType = 8
	Bool       DataType = 9
	Float16    DataType = 10
	Double     DataType = 11
	Uint32     DataType = 12
	Uint64     DataType = 13
	Complex64  DataType = 14
	Complex128 DataType = 15
	BFloat16   DataType = 16
	Float8E4M3 DataType = 17
	Float8E4FN DataType = 18
	Float8E5M2 DataType = 19
	Float8E5FN DataType = 20
	Uint4      DataType = 21
	Int4       DataType = 22
	Float4     DataType = 23
	typeLast            = Float4
)

// datatypes maps each type to the Open Inference Protocol's datatype; empty: none. core/model defines names and
// sizes.
var datatypes = [...]model.Datatype{Float: model.FP32, Uint8: model.Uint8, Int8: model.Int8, Uint16: model.Uint16, Int16: model.Int16,
	Int32: model.Int32, Int64: model.Int64, String: model.Bytes, Bool: model.Bool, Float16: model.FP16, Double: model.FP64,
	Uint32: model.Uint32, Uint64: model.Uint64, BFloat16: model.BF16}

// foreign are the types that only ONNX has.
var foreign = map[DataType]struct {
	name string
	bits int64
}{
	Undefined: {"undefined", 0}, Complex64: {"complex64", 64}, Complex128: {"complex128", 128},
	Float8E4M3: {"float8e4m3fn", 8}, Float8E4FN: {"float8e4m3fnuz", 8}, Float8E5M2: {"float8e5m2", 8}, Float8E5FN: {"float8e5m2fnuz", 8},
	Uint4: {"uint4", 4}, Int4: {"int4", 4}, Float4: {"float4e2m1", 4},
}

// String returns the Open Inference Protocol's name (FP32, UINT8, …), or this package's own if there is none.
func (t DataType) String() string {
	if d := t.Datatype(); d != "" {
		return string(d)
	}
	if f, known := foreign[t]; known {
		return f.name
	}
	return fmt.Sprintf("type %d", int32(t))
}

// TypeOf returns ONNX's number of a datatype; Undefined if it has none.
func TypeOf(t model.Datatype) DataType {
	// An empty t would match the types without a datatype.
	if i := slices.Index(datatypes[:], t); i > 0 && t != "" {
		return DataType(i)
	}
	return Undefined
}

// Datatype returns the Open Inference Protocol's datatype; empty if there is none.
func (t DataType) Datatype() model.Datatype {
	if t >= 0 && int(t) < len(datatypes) {
		return datatypes[t]
	}
	return ""
}

// Bytes returns the bytes of n packed elements; 0 for strings and unknown types.
func (t DataType) Bytes(n int64) int64 {
	// Two elements of four bits share a byte; the last one may be half used.
	return n*int64(t.Datatype().Size()) + (n*foreign[t].bits+7)/8
}

// Tensor is a constant: an initialiser or an attribute.
type Tensor struct {
	Name     string
	Type     DataType
	Dims     []int64  // empty for a scalar
	Raw      []byte   // little-endian, row-major; nil for String and External
	Strings  [][]byte // of a String tensor
	External bool     // the data is in another file, which this package does not read
}

// elementsMax bounds a tensor to the size that 2 GiB of protobuf can hold, so that sizes cannot overflow.
const elementsMax = 1 << 32

// Len returns the number of elements; −1 if dims are negative or their product is too large.
func (t *Tensor) Len() int64 {
	n := int64(1)
	for _, d := range t.Dims {
		if d < 0 || d > elementsMax {
			return -1
		}

		// Divide, because the product of two sizes may exceed 64 bits.
		if d > 0 && n > elementsMax/d {
			return -1
		}
		n *= d
	}
	return n
}

// Floats returns a copy of the elements of a Float tensor.
func (t *Tensor) Floats() ([]float32, error) {
	if err := t.wantType(Float); err != nil {
		return nil, err
	}

	out := make([]float32, len(t.Raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Raw[4*i:]))
	}
	return out, nil
}

func (t *Tensor) wantType(typ DataType) error {
	switch {
	case t.Type != typ:
		return fmt.Errorf("tensor %q: type %v: want %v", t.Name, t.Type, typ)
	case t.External:
		return fmt.Errorf("tensor %q: its data lies in another file; want it within the model", t.Name)
	}
	return nil
}

// FloatTensor returns a Float tensor; len(data) must be the product of dims.
func FloatTensor(name string, data []float32, dims ...int64) Tensor {
	raw := make([]byte, 0, 4*len(data))
	for _, f := range data {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	return mustFit(Tensor{Name: name, Type: Float, Dims: dims, Raw: raw})
}

// IntTensor returns an Int64 tensor; len(data) must be the product of dims.
func IntTensor(name string, data []int64, dims ...int64) Tensor {
	raw := make([]byte, 0, 8*len(data))
	for _, n := range data {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(n))
	}
	return mustFit(Tensor{Name: name, Type: Int64, Dims: dims, Raw: raw})
}

func mustFit(t Tensor) Tensor {
	if t.Type.Bytes(t.Len()) != int64(len(t.Raw)) {
		panic(fmt.Sprintf("tensor %q: %d bytes for dims %v of %v", t.Name, len(t.Raw), t.Dims, t.Type))
	}
	return t
}
