package model

import (
	"fmt"
	"slices"
)

// Tensor describes one input or output of a model, without the batch dimension.
type Tensor struct {
	Name     string
	Datatype Datatype
	Shape    []int64  // without the batch dimension; none: a single element
	Labels   []string // class names of an output, by index in its last dimension; nil: it has none
}

// SameTensors says whether two lists have the same names, datatypes and shapes in the same order; labels do not count.
func SameTensors(a, b []Tensor) bool {
	return slices.EqualFunc(a, b, func(x, y Tensor) bool {
		return x.Name == y.Name && x.Datatype == y.Datatype && slices.Equal(x.Shape, y.Shape)
	})
}

// TensorBytesMax bounds one row of one tensor, and so its number of elements.
const TensorBytesMax = 1 << 30

// Check says what is wrong with the datatype or the shape: no dimension may be below 0, and a row must not take more than
// TensorBytesMax bytes, those of size 0 counted as 1.
func (t *Tensor) Check() error {
	if _, err := ParseDatatype(string(t.Datatype)); err != nil {
		return fmt.Errorf("%q: %w", t.Name, err)
	}

	bytes := int64(max(t.Datatype.Size(), 1))
	for _, n := range t.Shape {
		if n < 0 || n > TensorBytesMax/bytes {
			return fmt.Errorf("%q: shape %v of %s: want dimensions from 0 on and at most %d bytes", t.Name, t.Shape, t.Datatype, TensorBytesMax)
		}

		// A row without elements must not hide that its other dimensions are too large.
		bytes *= max(n, 1)
	}
	return nil
}

// IsEmpty reports whether a dimension has size 0, so that rows have no element.
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

// RowBytes returns how many bytes a row takes, 0 where rows vary. The tensor must have passed Check.
func (t *Tensor) RowBytes() int { return t.RowElements() * t.Datatype.Size() }
