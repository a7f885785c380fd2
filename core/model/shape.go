package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A model whose tensors a request completes, by dimensions that are open or inputs that may be left out, is served in
// shape classes. A class is a model of its own, of tensors of fixed sizes, whose version names the version that it is a
// class of and the shapes: requests of one class run together, and none is padded (docs/decisions/0225).

// OpenDim is a dimension that each request says.
const OpenDim = -1

// ShapesMax is the most shape classes that a version of a model may be given.
const ShapesMax = 1024

const (
	classMark = "@" // between a version and its class: no version of a repository has one
	leftOut   = "-" // an optional input that the requests of a class do not give
	given     = "+" // one that they give, of a fixed shape
)

// IsOpen reports whether a dimension is known only with a request.
func (t *Tensor) IsOpen() bool { return slices.Contains(t.Shape, OpenDim) }

// Fits reports whether a shape is the tensor's, whose open dimensions may have any size from 0 on.
func (t *Tensor) Fits(shape []int64) bool {
	if len(shape) != len(t.Shape) {
		return false
	}
	for i, n := range shape {
		if n < 0 || t.Shape[i] != n && t.Shape[i] != OpenDim {
			return false
		}
	}
	return true
}

// HasClasses reports whether requests for the model belong to shape classes.
func (i *Info) HasClasses() bool {
	return i.Optional != 0 || slices.ContainsFunc(i.Inputs, func(t Tensor) bool { return t.IsOpen() })
}

// MayLack reports whether requests may leave out Inputs[k].
func (i *Info) MayLack(k int) bool { return i.Optional>>k&1 != 0 }

// ClassVersion is the version that a shape class of a version has.
func ClassVersion(version, class string) string { return version + classMark + class }

// SplitVersion returns what ClassVersion was given; class is empty if the version is not that of a class.
func SplitVersion(version string) (whole, class string) {
	whole, class, _ = strings.Cut(version, classMark)
	return whole, class
}

// ClassOf names the shape class of a request whose inputs have these shapes, without the batch dimension, in the model's
// order; a nil shape stands for an input that is left out. The error names the input that does not fit.
func (i *Info) ClassOf(shapes [][]int64) (string, error) {
	var parts []string
	some := false
	for k := range i.Inputs {
		t := &i.Inputs[k]
		some = some || shapes[k] != nil

		// Inputs that are the same in all classes have no part in the name.
		switch {
		case shapes[k] == nil && !i.MayLack(k):
			return "", fmt.Errorf("input %q: is missing", t.Name)
		case shapes[k] == nil:
			parts = append(parts, leftOut)
		case !t.Fits(shapes[k]):
			return "", fmt.Errorf("input %q: shape %v: must be %v, -1 being any size from 0 on", t.Name, shapes[k], t.Shape)
		case t.IsOpen():
			parts = append(parts, joinDims(t, shapes[k]))
		case i.MayLack(k):
			parts = append(parts, given)
		}
	}

	// A row consists of its inputs' rows: there must be one of them.
	if !some {
		return "", fmt.Errorf("inputs: none is given: want one at least")
	}
	return strings.Join(parts, ","), nil
}

// joinDims writes the sizes of the open dimensions, as in 7x2.
func joinDims(t *Tensor, shape []int64) string {
	text := ""
	for k, n := range shape {
		if t.Shape[k] != OpenDim {
			continue
		}
		if text != "" {
			text += "x"
		}
		text += strconv.FormatInt(n, 10)
	}
	return text
}

// ClassShapes returns the shapes that ClassOf was given. The class may come from anybody: the shapes fit the model, or
// there is an error.
func (i *Info) ClassShapes(class string) ([][]int64, error) {
	parts := strings.Split(class, ",")
	shapes := make([][]int64, len(i.Inputs))
	for k := range i.Inputs {
		t := &i.Inputs[k]
		if !t.IsOpen() && !i.MayLack(k) {
			shapes[k] = slices.Clone(t.Shape)
			continue
		}
		if len(parts) == 0 {
			return nil, fmt.Errorf("shape class %.60q: has nothing for input %q", class, t.Name)
		}

		part := parts[0]
		parts = parts[1:]
		if part != leftOut || !i.MayLack(k) {
			shapes[k] = t.splitDims(part)
		}
	}

	// Written again it must be the same: this finds what is left over, wrong numbers and other ways to write one class.
	if again, err := i.ClassOf(shapes); err != nil || again != class {
		return nil, fmt.Errorf("shape class %.60q: does not fit the inputs %v", class, shapesOf(i.Inputs))
	}
	return shapes, nil
}

// splitDims puts the sizes that joinDims wrote in the place of the open dimensions; what is wrong with them is for Fits.
func (t *Tensor) splitDims(part string) []int64 {
	shape := slices.Clone(t.Shape)
	sizes := strings.Split(part, "x")
	for k := range shape {
		if shape[k] != OpenDim || len(sizes) == 0 {
			continue
		}

		// No dimension has a size below 0, so that what is no number fits nothing.
		n, err := strconv.ParseInt(sizes[0], 10, 64)
		if err != nil {
			n = -1
		}
		shape[k], sizes = n, sizes[1:]
	}
	return shape
}

func shapesOf(tensors []Tensor) (all [][]int64) {
	for k := range tensors {
		all = append(all, tensors[k].Shape)
	}
	return all
}
