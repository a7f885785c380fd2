package model

import (
	"fmt"
	"slices"
)

// Tensor describes one input or output of a model, without the batch dimension.
type Tensor struct {
	Name     string
	Datatype Datatype
	Shape    []int64  // without the batch dimension; empty: a single element
	Labels   []string // class names of an output, by index in its last dimension; nil: none
	Picture  *Picture // how a picture becomes a row of an input; nil: it takes none
}

// SameTensors reports whether two lists have the same names, datatypes and shapes in the same order. Labels and
// pictures do not count.
func SameTensors(a, b []Tensor) bool {
	return slices.EqualFunc(a, b, func(x, y Tensor) bool {
		return x.Name == y.Name && x.Datatype == y.Datatype && slices.Equal(x.Shape, y.Shape)
	})
}

// TensorBytesMax bounds one row of one tensor, and so its number of elements.
const TensorBytesMax = 1 << 30

// Check returns an error if the datatype or the shape is invalid: a dimension below 0, or a row of more than
// TensorBytesMax bytes, where a size of 0 counts as 1.
func (t *Tensor) Check() error {
	if _, err := ParseDatatype(string(t.Datatype)); err != nil {
		return fmt.Errorf("%q: %w", t.Name, err)
	}

	bytes := int64(max(t.Datatype.Size(), 1))
	for _, n := range t.Shape {
		if n < 0 || n > TensorBytesMax/bytes {
			return fmt.Errorf("%q: shape %v of %s: want dimensions from 0 on and at most %d bytes", t.Name, t.Shape, t.Datatype, TensorBytesMax)
		}

		// A dimension of size 0 must not hide that the others are too large.
		bytes *= max(n, 1)
	}
	return nil
}

// IsEmpty reports whether a dimension has size 0, so that rows have no elements.
func (t *Tensor) IsEmpty() bool { return slices.Contains(t.Shape, 0) }

// Varies reports whether rows of the tensor differ in size.
func (t *Tensor) Varies() bool { return t.Datatype == Bytes }

// RowElements returns how many elements a row has. The tensor must have passed Check.
func (t *Tensor) RowElements() int {
	n := 1
	for _, d := range t.Shape {
		n *= int(d)
	}
	return n
}

// RowBytes returns the bytes of a row; 0 if rows vary in size. The tensor must have passed Check.
func (t *Tensor) RowBytes() int { return t.RowElements() * t.Datatype.Size() }
