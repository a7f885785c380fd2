package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A model with open dimensions or optional inputs is served in shape classes. A class is a model of its own with
// tensors of fixed sizes; its version names the original version and the shapes. Requests of one class are batched
// together without padding (docs/decisions/0225).

// OpenDim marks a dimension whose size each request states.
const OpenDim = -1

// ShapesMax is the largest number of shape classes of a model's version.
const ShapesMax = 1024

const (
	classMark = "@" // separates version and class; no version of a repository contains it
	leftOut   = "-" // an optional input that requests of the class leave out
	given     = "+" // an optional input of fixed shape that they provide
)

// IsOpen reports whether some dimension's size is known only with a request.
func (t *Tensor) IsOpen() bool { return slices.Contains(t.Shape, OpenDim) }

// Fits reports whether the tensor may have this shape. An open dimension may have any size from 0.
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

// ClassVersion returns the version of a shape class.
func ClassVersion(version, class string) string { return version + classMark + class }

// SplitVersion is the inverse of ClassVersion; class is empty if the version is not a class's.
func SplitVersion(version string) (whole, class string) {
	whole, class, _ = strings.Cut(version, classMark)
	return whole, class
}

// ClassOf returns the shape class of a request whose inputs have these shapes, without the batch dimension, in the
// model's order. A nil shape stands for an omitted input. The error names the input that does not fit.
func (i *Info) ClassOf(shapes [][]int64) (string, error) {
	var parts []string
	some := false
	for k := range i.Inputs {
		t := &i.Inputs[k]
		some = some || shapes[k] != nil

		// The name leaves out inputs that are the same in all classes.
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

	// A row consists of its inputs' rows, so a request needs at least one input.
	if !some {
		return "", fmt.Errorf("inputs: none is given: want one at least")
	}
	return strings.Join(parts, ","), nil
}

// joinDims formats the sizes of the open dimensions, such as 7x2.
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

// ClassShapes is the inverse of ClassOf. The class may come from an untrusted peer: an error says that its shapes do
// not fit the model.
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

	// Formatting the shapes again must give the same class. This catches leftovers, malformed numbers and other
	// spellings.
	if again, err := i.ClassOf(shapes); err != nil || again != class {
		return nil, fmt.Errorf("shape class %.60q: does not fit the inputs %v", class, shapesOf(i.Inputs))
	}
	return shapes, nil
}

// splitDims fills the open dimensions with sizes in the format of joinDims. The caller checks the result with Fits.
func (t *Tensor) splitDims(part string) []int64 {
	shape := slices.Clone(t.Shape)
	sizes := strings.Split(part, "x")
	for k := range shape {
		if shape[k] != OpenDim || len(sizes) == 0 {
			continue
		}

		// A malformed size becomes negative, which Fits refuses.
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
