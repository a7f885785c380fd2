//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
	graph "downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// ONNX Runtime numbers element types as ONNX does, so one table serves both.

// elementType returns ONNX Runtime's number of a datatype.
func elementType(t model.Datatype) onnx.TensorElementDataType {
	return onnx.TensorElementDataType(graph.TypeOf(t))
}

// datatypeName returns the name of an element type: the Open Inference Protocol's, if it has one.
func datatypeName(t onnx.TensorElementDataType) string { return graph.DataType(t).String() }

// checkGraph compares the graph's signature with the configuration's. part is the part that m runs of a file with
// early exits, nil if m runs all of it.
func checkGraph(source *repo.Model, m *device.Model) (part *graph.Part, err error) {
	path := source.ONNXPath
	// Only names and shapes are read, which needs no optimization.
	o, err := sessionOptions(onnx.GraphOptimizationLevelDisableAll, 1)
	if err != nil {
		return nil, fmt.Errorf("set session options: %w", err)
	}
	defer o.Destroy()

	inputs, outputs, err := onnx.GetInputOutputInfoWithOptions(path, o)
	if err != nil {
		return nil, fmt.Errorf("%s: not an ONNX model that ONNX Runtime %s can load: %w", path, onnx.GetVersion(), err)
	}

	// The part of a file with exits is cut here, because the runtime would run all of it.
	if source.ExitStage > 0 || hasExits(source, outputs) {
		p, err := graph.ReadPart(source)
		if err != nil {
			return nil, err
		}
		part = &p
		if inputs, outputs, err = partSignature(part); err != nil {
			return nil, fmt.Errorf("%s: exit %d: %w", path, source.ExitStage, err)
		}
	}

	wantIn, wantOut := m.Inputs, m.Outputs
	if m.Varies {
		wantIn, wantOut = m.InParts, m.OutParts
	}

	if err := checkTensors(m, "input", withoutDefaults(m, wantIn, inputs), inputs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := checkTensors(m, "output", wantOut, outputs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}

	// No request could feed an input that the configuration does not name (O1).
	for _, in := range inputs {
		if findTensor(wantIn, in.Name) == nil {
			return nil, fmt.Errorf("%s: the graph needs input %q (%s %v), config.pbtxt does not name it", path, in.Name, datatypeName(in.DataType), in.Dimensions)
		}
	}
	return part, nil
}

// hasExits reports whether some outputs of a model's file belong to exits.
func hasExits(m *repo.Model, outputs []onnx.InputOutputInfo) bool {
	for _, o := range outputs {
		if graph.IsExitOutput(m, o.Name) {
			return true
		}
	}
	return false
}

// partSignature returns the inputs and outputs of a part in the runtime's form.
func partSignature(p *graph.Part) (inputs, outputs []onnx.InputOutputInfo, err error) {
	return onnx.GetInputOutputInfoWithONNXData(p.Marshal())
}

// withoutDefaults removes the optional inputs that have a default in the graph: ONNX Runtime does not list those.
func withoutDefaults(m *device.Model, want []device.Tensor, graph []onnx.InputOutputInfo) (listed []device.Tensor) {
	for i := range want {
		inGraph := slices.ContainsFunc(graph, func(g onnx.InputOutputInfo) bool { return g.Name == want[i].Name })
		if inGraph || !m.Source.Config.IsOptional(want[i].Name) {
			listed = append(listed, want[i])
		}
	}
	return listed
}

func findTensor(list []device.Tensor, name string) *device.Tensor {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

func checkTensors(m *device.Model, kind string, want []device.Tensor, graph []onnx.InputOutputInfo) error {
	for i := range want {
		t := &want[i]

		// A refusal lists the graph's own names.
		var got *onnx.InputOutputInfo
		var names []string
		for j := range graph {
			names = append(names, graph[j].Name)
			if graph[j].Name == t.Name {
				got = &graph[j]
			}
		}

		if got == nil {
			return fmt.Errorf("config.pbtxt names %s %q, the graph has %s", kind, t.Name, strings.Join(names, ", "))
		}

		if err := checkTensor(m, t, got); err != nil {
			return fmt.Errorf("%s %q: %w", kind, t.Name, err)
		}
	}
	return nil
}

func checkTensor(m *device.Model, t *device.Tensor, got *onnx.InputOutputInfo) error {
	if got.OrtValueType != onnx.ONNXTypeTensor {
		return fmt.Errorf("the graph has %v there, only dense tensors are supported", got.OrtValueType)
	}
	if want := elementType(t.Datatype); want != got.DataType {
		return fmt.Errorf("data_type is %s in config.pbtxt, the graph has %s", t.Datatype, datatypeName(got.DataType))
	}

	dims := []int64(got.Dimensions)
	if !m.Batched && len(dims) == 0 && t.Datatype == model.Bytes {
		return errors.New("the graph has a text without dimensions there: not supported; export the model with at least one dimension")
	}
	if m.Batched {
		if len(dims) == 0 {
			return fmt.Errorf("max_batch_size is %d in config.pbtxt, the graph has a scalar without a batch dimension", m.BatchMax)
		}

		// A graph for batches of one serves a model whose batches are never larger.
		if dims[0] >= 0 && (dims[0] != 1 || m.BatchMax > 1) {
			return fmt.Errorf("max_batch_size is %d in config.pbtxt, the graph's first dimension is fixed to %d: export it with a variable batch dimension, or set max_batch_size: 0 and name all dimensions in dims", m.BatchMax, dims[0])
		}
		dims = dims[1:]
	}

	same := len(dims) == len(t.Graph)
	for i := 0; same && i < len(dims); i++ {
		same = dims[i] < 0 || dims[i] == t.Graph[i]
	}
	if !same {
		return fmt.Errorf("dims are %v in config.pbtxt, the graph has %v (without the batch dimension)", t.Graph, dims)
	}
	return nil
}
