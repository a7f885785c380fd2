//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// ProbeOutputs runs a model's file once on one row of its inputs, which must have fixed shapes, and returns its
// outputs with the shapes that the graph gives them for these inputs, without the batch dimension. The row is zeros,
// and "0" in texts. It takes the time to open the file and run it once.
func (r *Runtime) ProbeOutputs(m *repo.Model) (outputs []model.Tensor, err error) {
	// Optimization does not change shapes, and opening is faster without it.
	o, err := sessionOptions(onnx.GraphOptimizationLevelDisableAll, 1)
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer o.Destroy()

	s, err := onnx.NewDynamicAdvancedSession(m.ONNXPath, tensorNames(m.Inputs), tensorNames(m.Outputs), o)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", m.ONNXPath, err)
	}
	defer func() { err = errors.Join(err, s.Destroy()) }()

	// Values live until the shapes have been read.
	var row []onnx.Value
	results := make([]onnx.Value, len(m.Outputs))
	var pins runtime.Pinner
	defer func() {
		for _, v := range slices.Concat(row, results) {
			if v != nil {
				err = errors.Join(err, v.Destroy())
			}
		}
		pins.Unpin()
	}()

	for k := range m.Inputs {
		t := &m.Inputs[k]
		v, err := r.zeroRow(t, graphShape(m, m.GraphInput(k)), &pins)
		if err != nil {
			return nil, fmt.Errorf("input %q of shape %v: %w", t.Name, t.Shape, err)
		}
		row = append(row, v)
	}

	if err := s.Run(row, results); err != nil {
		dropNone(results)
		return nil, fmt.Errorf("the model does not run on it: %w", err)
	}

	empty := slices.ContainsFunc(m.Inputs, func(t model.Tensor) bool { return t.IsEmpty() })
	outputs = slices.Clone(m.Outputs)
	for k := range outputs {
		if outputs[k].Shape, err = rowShape(m, results[k], empty); err != nil {
			return nil, fmt.Errorf("output %q: %w", outputs[k].Name, err)
		}
	}
	return outputs, nil
}

// dropNone clears results that the binding could not make. For such a result it returns a nil pointer in a non-nil
// interface, and freeing that would crash.
func dropNone(results []onnx.Value) {
	for k, v := range results {
		if v != nil && reflect.ValueOf(v).IsNil() {
			results[k] = nil
		}
	}
}

func tensorNames(tensors []model.Tensor) (names []string) {
	for k := range tensors {
		names = append(names, tensors[k].Name)
	}
	return names
}

// graphShape returns the shape of one row with the batch dimension, if the model has one.
func graphShape(m *repo.Model, shape []int64) onnx.Shape {
	if m.Batched {
		return append(onnx.Shape{1}, shape...)
	}
	return slices.Clone(shape)
}

// zeroRow returns a tensor of zeros in memory that stays in place until it is unpinned.
func (r *Runtime) zeroRow(t *model.Tensor, shape onnx.Shape, pins *runtime.Pinner) (onnx.Value, error) {
	if t.Datatype == model.Bytes {
		v, err := onnx.NewStringTensor(shape)
		if err != nil {
			return nil, err
		}
		// Texts that must be numbers accept "0".
		return v, v.SetContents(slices.Repeat([]string{"0"}, t.RowElements()))
	}

	memory := make([]byte, t.RowBytes())
	if len(memory) > 0 {
		pins.Pin(&memory[0])
	}
	return newTensor(r.strings, shape, memory, elementType(t.Datatype))
}

// rowShape returns the shape of one row of a result; empty means that an input has no elements.
func rowShape(m *repo.Model, v onnx.Value, empty bool) ([]int64, error) {
	shape := []int64(v.GetShape())
	if m.Batched {
		if len(shape) == 0 || shape[0] != 1 {
			return nil, fmt.Errorf("has shape %v for one row: its first dimension is not the batch's, as max_batch_size %d in config.pbtxt says", shape, m.BatchMax)
		}
		shape = shape[1:]
	}

	// A shape that depends on the values usually has no elements for zeros, and then no buffers can be made for it.
	// If an input also has no elements, an output without elements is acceptable.
	if !empty && slices.Contains(shape, 0) {
		return nil, fmt.Errorf("has shape %v for zeros: outputs whose shape follows from the values are not supported", shape)
	}
	return shape, nil
}
