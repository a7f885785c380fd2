//go:build linux

package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend"
)

// TestLibraryTakesShapes: NewShapedInput makes inputs of a shape; what does not fit is told.
func TestLibraryTakesShapes(t *testing.T) {
	p := serveReal(t, variableRepository(t), nil)
	c := p.Client()
	for _, n := range []int{3, 4, 3} {
		in, err := c.NewShapedInput(t.Context(), "text", map[string][]int64{"in": {int64(n)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Tensor("in").SetFloat32s(make([]float32, n)); err != nil {
			t.Fatal(err)
		}
		r, err := c.Infer(t.Context(), "text", in)
		if err != nil || r.Version != "1" || len(r.Data) != 4*n || !slices.Equal(r.Output("twice").Info().Shape, []int64{int64(n)}) {
			t.Errorf("%d: %+v %v", n, r, err)
		}
		r.Release()
		in.Free()
	}

	if _, err := c.NewInput("text"); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), "NewShapedInput") {
		t.Errorf("an input without a shape: %v", err)
	}
	if _, err := c.InferCopy(t.Context(), "text", make([]byte, 12)); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a buffer of no shape: %v", err)
	}
	for name, shapes := range map[string]map[string][]int64{"no such tensor": {"x": {1}}, "is missing": {}, "must be [-1]": {"in": {1, 2}}} {
		if _, err := c.NewShapedInput(t.Context(), "text", shapes); !errors.Is(err, frontend.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v: %v, want %s", shapes, err, name)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := c.NewShapedInput(short, "text", map[string][]int64{"in": {9}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no time: %v", err)
	}
}

// TestConformanceOptionalInputs: requests may leave out an input that config.pbtxt says is optional, whose default the graph has.
func TestConformanceOptionalInputs(t *testing.T) {
	p := serveReal(t, writeRepository(t,
		file{"sum/1/model.onnx", graph(t, "sum", func(g *onnx.Builder) {
			in, bias := g.Input("in", onnx.Float, onnx.Batched(2)), g.Input("bias", onnx.Float, onnx.Batched(2))
			g.Const(onnx.FloatTensor(bias, []float32{10, 20}, 1, 2))
			g.Output("out", g.Node("Add", []string{in, bias}), onnx.Float, onnx.Batched(2))
		})},
		file{"sum/config.pbtxt", []byte(`backend: "onnxruntime" max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "bias" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 2 ] } ]
` + slow)}), nil)

	const in, bias = `{"name":"in","datatype":"FP32","shape":[1,2],"data":[1,2]}`, `{"name":"bias","datatype":"FP32","shape":[1,2],"data":[5,6]}`
	for inputs, want := range map[string]string{in: `"data":[11,22]`, in + "," + bias: `"data":[6,8]`, bias + "," + in: `"data":[6,8]`} {
		if code, text := ask(t, p, "/v2/models/sum/infer", `{"inputs":[`+inputs+`]}`); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", inputs, code, text, want)
		}
	}
	if code, text := ask(t, p, "/v2/models/sum/infer", `{"inputs":[`+bias+`]}`); code != http.StatusBadRequest || !strings.Contains(text, `input \"in\": is missing`) {
		t.Errorf("the other input left out: %d %s", code, text)
	}
	if _, text := ask(t, p, "/v2/models/sum/config", ""); strings.Count(text, `"optional":true`) != 1 {
		t.Errorf("configuration: %s", text)
	}
}

// TestConformanceScalars: a tensor that has no dimensions in the graph is one element to clients, said by config.pbtxt or read from
// the graph, without a batch dimension and with one, also beside open dimensions.
func TestConformanceScalars(t *testing.T) {
	double := func(dims []onnx.Dim) []byte {
		return graph(t, "double", func(g *onnx.Builder) {
			in := g.Input("in", onnx.Float, dims)
			g.Output("out", g.Node("Add", []string{in, in}), onnx.Float, dims)
		})
	}
	p := serveReal(t, writeRepository(t,
		file{"told/1/model.onnx", double(nil)}, file{"told/config.pbtxt", []byte(`backend: "onnxruntime"
input [ { name: "in" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
` + slow)},
		file{"alone/1/model.onnx", double(nil)}, file{"alone/config.pbtxt", []byte(slow)},
		file{"rows/1/model.onnx", double([]onnx.Dim{{Name: "batch", Size: -1}})}, file{"rows/config.pbtxt", []byte(slow)},
		file{"sums/1/model.onnx", total(t, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}}, []onnx.Dim{{Name: "batch", Size: -1}}, 1)},
		file{"sums/config.pbtxt", []byte(slow)},
		file{"text/1/model.onnx", identity(t, onnx.String, nil)}), nil)

	for _, c := range []struct{ model, shape, data, want string }{
		{"told", "[1]", "[3]", `"shape":[1],"data":[6]`},
		{"alone", "[1]", "[4]", `"shape":[1],"data":[8]`},
		{"rows", "[2,1]", "[1,2]", `"shape":[2,1],"data":[2,4]`},
		{"sums", "[2,3]", "[1,2,3,4,5,6]", `{"name":"sum","datatype":"FP32","shape":[2,1],"data":[6,15]}`},
	} {
		code, text := ask(t, p, "/v2/models/"+c.model+"/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":`+c.shape+`,"data":`+c.data+`}]}`)
		if code != http.StatusOK || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", c.model, code, text, c.want)
		}
	}
	if _, index := ask(t, p, "/v2/repository/index", "{}"); !strings.Contains(index, "a text without dimensions") {
		t.Errorf("a text without dimensions is not refused: %s", index)
	}
}

// TestEmulatedModelsTakeShapes: without ONNX Runtime an emulated model's open outputs follow its inputs, and a class has its profile.
func TestEmulatedModelsTakeShapes(t *testing.T) {
	c := config(t)
	put(t, c.Models, "open/config.pbtxt", []byte(`platform: "emulated" max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "mask" data_type: TYPE_UINT8 dims: [ -1 ] optional: true } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "0.1" } }
`+slow))
	p := servedWith(t, c)
	for inputs, want := range map[string]string{
		`{"name":"in","datatype":"FP32","shape":[1,3,2],"data":[1,2,3,4,5,6]}`:                                                           `"shape":[1,3]`,
		`{"name":"in","datatype":"FP32","shape":[2,0,2],"data":[]}`:                                                                      `"shape":[2,0]`,
		`{"name":"in","datatype":"FP32","shape":[1,1,2],"data":[1,2]},{"name":"mask","datatype":"UINT8","shape":[1,4],"data":[1,0,1,0]}`: `"shape":[1,1]`,
	} {
		if code, text := ask(t, p, "/v2/models/open/infer", `{"inputs":[`+inputs+`]}`); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", inputs, code, text, want)
		}
	}
}
