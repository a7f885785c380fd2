//go:build cgo

package ort

import (
	"os"
	"path/filepath"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

var onnxTypes = map[string]onnx.DataType{
	"FP32": onnx.Float, "FP16": onnx.Float16, "INT32": onnx.Int32, "INT64": onnx.Int64, "UINT8": onnx.Uint8, "BOOL": onnx.Bool,
}

// writeModel stores a graph and returns a repository model that points to it.
func writeModel(t testing.TB, name string, batchMax int, g *onnx.Builder, in, out []model.Tensor) *repo.Model {
	t.Helper()
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name+".onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &repo.Config{Name: name, Platform: repo.PlatformONNX, BatchMax: batchMax}
	for _, x := range in {
		c.Inputs = append(c.Inputs, repo.TensorConfig{Tensor: x})
	}
	for _, x := range out {
		c.Outputs = append(c.Outputs, repo.TensorConfig{Tensor: x})
	}
	return &repo.Model{Name: name, Version: "1", Platform: repo.PlatformONNX, BatchMax: max(batchMax, 1), Batched: batchMax > 0,
		Inputs: in, Outputs: out, ONNXPath: path, VersionDir: filepath.Dir(path), Config: c}
}

// rewrite changes a stored graph.
func rewrite(t testing.TB, path string, change func(*onnx.Model)) {
	t.Helper()
	m, err := onnx.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func layout(t testing.TB, m *repo.Model) *device.Model {
	t.Helper()
	d, err := device.NewModel(m, 0, devicetest.SlotBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

// identity returns a model that copies one input of every datatype to an output.
func identity(t testing.TB, batchMax int) *repo.Model {
	g := onnx.NewBuilder("identity")
	var in, out []model.Tensor
	for i, t := range []model.Datatype{"FP32", "FP16", "INT32", "INT64", "UINT8", "BOOL"} {
		d := string(t)
		x := g.Input("in_"+d, onnxTypes[d], onnx.Batched(int64(i+1), 3))
		g.Output("out_"+d, g.Node("Identity", []string{x}), onnxTypes[d], onnx.Batched(int64(i+1), 3))
		in = append(in, tensor("in_"+d, t, int64(i+1), 3))
		out = append(out, tensor("out_"+d, t, int64(i+1), 3))
	}
	return writeModel(t, "identity", batchMax, g, in, out)
}

// twice returns y = x + x on FP32 rows of 4, with the graph's tensors named x and y.
func twice(t testing.TB, batchMax int, dims []onnx.Dim) *repo.Model {
	g := onnx.NewBuilder("twice")
	x := g.Input("x", onnx.Float, dims)
	g.Output("y", g.Node("Add", []string{x, x}), onnx.Float, dims)
	return writeModel(t, "twice", batchMax, g, []model.Tensor{tensor("x", "FP32", 4)}, []model.Tensor{tensor("y", "FP32", 4)})
}

// times returns y = x·w on FP32 rows of 4, with weights that multiply by factor.
func times(t testing.TB, batchMax int, factor float32) *repo.Model {
	g := onnx.NewBuilder("times")
	w := make([]float32, 16)
	for i := range 4 {
		w[5*i] = factor
	}
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	g.Output("y", g.Node("MatMul", []string{x, g.Const(onnx.FloatTensor("w", w, 4, 4))}), onnx.Float, onnx.Batched(4))
	return writeModel(t, "times", batchMax, g, []model.Tensor{tensor("x", "FP32", 4)}, []model.Tensor{tensor("y", "FP32", 4)})
}
