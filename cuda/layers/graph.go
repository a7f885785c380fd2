package layers

import (
	"errors"
	"fmt"
	"math"
)

// DataType is an element type.
type DataType uint8

// The element types.
const (
	Float32 DataType = iota + 1
	Int32
	Int64
	Bool
	Uint8
	float16  // storage of Float32 in a plan of that precision; not used in graphs
	bfloat16 //
)

// Size returns the bytes of an element.
func (t DataType) Size() int {
	switch t {
	case Float32, Int32:
		return 4
	case Int64:
		return 8
	case Bool, Uint8:
		return 1
	case float16, bfloat16:
		return 2
	}
	return 0
}

// String returns the type's name.
func (t DataType) String() string {
	if t >= Float32 && t <= Uint8 {
		return [...]string{"float32", "int32", "int64", "bool", "uint8"}[t-1]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Value is a tensor's name, type and dimensions. In a Graph's inputs the first dimension may be −1, which stands for
// the batch.
type Value struct {
	Name string
	Type DataType
	Dims []int
}

// Constant is a tensor with bytes: row-major, little-endian.
type Constant struct {
	Value
	Data []byte
}

// Attr is an attribute of a node; the operator determines which field is used.
type Attr struct {
	Int    int64
	Float  float32
	Ints   []int64
	Floats []float32
	Text   string
	Tensor *Constant
}

// Node is one operator of ONNX's default operator set. An empty input name is an omitted input.
type Node struct {
	Name, Op string
	Inputs   []string
	Outputs  []string
	Attrs    map[string]Attr
}

// Graph is a model. Nodes are in topological order. Opset is the version of ONNX's operator set.
type Graph struct {
	Name      string
	Opset     int64
	Inputs    []Value
	Outputs   []string
	Constants []Constant
	Nodes     []Node

	derived map[string][]byte // parameters computed from constants, by name, for plans of other batches
}

// ErrUnsupported: the graph uses an operator, a type or a mode that this executor lacks, so the model needs another
// executor.
var ErrUnsupported = errors.New("layers: not supported")

// elementsMax keeps every index and stride within 32 bits, as kernels require.
const elementsMax = math.MaxInt32

// Elements returns the number of elements of a shape. It returns an error if a dimension is negative or the number is
// too large.
func Elements(dims []int) (int, error) {
	n := 1
	for _, d := range dims {
		if d < 0 {
			return 0, fmt.Errorf("shape %v: negative dimension", dims)
		}
		// Divide, because the product may overflow.
		if d > 0 && n > elementsMax/d {
			return 0, fmt.Errorf("shape %v: more than %d elements", dims, elementsMax)
		}
		n *= d
	}
	return n, nil
}

// checkData refuses constants whose data does not match their type and dimensions, and weights that are NaN or
// infinite.
func (c *Constant) checkData() error {
	n, err := Elements(c.Dims)
	if err != nil {
		return fmt.Errorf("constant %q: %w", c.Name, err)
	}
	if c.Type.Size() == 0 {
		return fmt.Errorf("constant %q: %v: %w", c.Name, c.Type, ErrUnsupported)
	}

	if len(c.Data) != n*c.Type.Size() {
		return fmt.Errorf("constant %q: %d bytes for %v of %v", c.Name, len(c.Data), c.Dims, c.Type)
	}

	// Such weights would make every answer NaN without an error anywhere.
	if c.Type == Float32 {
		for i, v := range floatsOf(c.Data) {
			if math.IsNaN(float64(v)) {
				return fmt.Errorf("constant %q: element %d is not a number", c.Name, i)
			}
		}
	}
	return nil
}
