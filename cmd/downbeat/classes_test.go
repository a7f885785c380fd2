//go:build linux

package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend/gateway/oip"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// total is a graph that sums its input "in" over the last dimension into "sum", and gives it back doubled as "twice".
func total(t testing.TB, dims, sums []onnx.Dim, axis int64) []byte {
	return graph(t, "total", func(g *onnx.Builder) {
		in := g.Input("in", onnx.Float, dims)
		g.Output("sum", g.Node("ReduceSum", []string{in, g.Shape(axis)}, onnx.Int("keepdims", 0)), onnx.Float, sums)
		g.Output("twice", g.Node("Add", []string{in, in}), onnx.Float, dims)
	})
}

// variableRepository has models with variable dimensions: of a batch, without one, completed from its graph alone, with a
// sample, and with room for two classes.
func variableRepository(t testing.TB) string {
	batched := total(t, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "length", Size: -1}}, []onnx.Dim{{Name: "batch", Size: -1}}, 1)
	const tensors = `backend: "onnxruntime" max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "twice" data_type: TYPE_FP32 dims: [ -1 ] } ]
`
	return writeRepository(t,
		file{"text/1/model.onnx", batched}, file{"text/config.pbtxt", []byte(tensors + slow)},
		file{"whole/1/model.onnx", total(t, []onnx.Dim{{Name: "rows", Size: -1}, {Name: "columns", Size: -1}}, []onnx.Dim{{Name: "rows", Size: -1}}, 1)},
		file{"whole/config.pbtxt", []byte(`backend: "onnxruntime" max_batch_size: 0
input [ { name: "in" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ -1 ] } ]
` + slow)},
		file{"alone/1/model.onnx", identity(t, onnx.Float, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "length", Size: -1}, {Size: 2}})},
		file{"sampled/1/model.onnx", batched},
		file{"sampled/config.pbtxt", []byte(tensors + slow + `model_warmup { name: "five" inputs { key: "in" value { data_type: TYPE_FP32 dims: 5 random_data: true } } }`)},
		file{"few/1/model.onnx", batched},
		file{"few/config.pbtxt", []byte(tensors + slow + `parameters { key: "shapes_max" value { string_value: "2" } }`)},
		file{"data/1/model.onnx", graph(t, "data", func(g *onnx.Builder) {
			in := g.Input("in", onnx.Float, onnx.Fixed(4))
			g.Output("out", g.Node("NonZero", []string{in}), onnx.Int64, []onnx.Dim{{Size: 1}, {Name: "n", Size: -1}})
		})},
	)
}

// row is a REST body with one row of n numbers, 1 to n.
func row(n int) string {
	text := strings.Builder{}
	for i := range n {
		fmt.Fprintf(&text, ",%d", i+1)
	}
	return fmt.Sprintf(`{"inputs":[{"name":"in","datatype":"FP32","shape":[1,%d],"data":[%s]}]}`, n, text.String()[1:])
}

// TestConformanceVariableDimensions: models whose dims are -1 take every shape that fits, over REST.
func TestConformanceVariableDimensions(t *testing.T) {
	p := serveReal(t, variableRepository(t), nil)
	for _, c := range []struct{ name, path, body, want string }{
		{"a row of 3", "text/infer", row(3), `"shape":[1,3],"data":[2,4,6]`},
		{"a row of 5", "text/infer", row(5), `"model_name":"text","model_version":"1","outputs":[{"name":"twice","datatype":"FP32","shape":[1,5],"data":[2,4,6,8,10]}]`},
		{"two rows", "text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[2,2],"data":[1,2,3,4]}]}`, `"shape":[2,2],"data":[2,4,6,8]`},
		{"no batch dimension", "text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[2],"data":[1,2]}]}`, `"shape":[2],"data":[2,4]`},
		{"max_batch_size 0", "whole/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[3,2],"data":[1,2,3,4,5,6]}]}`, `"name":"sum","datatype":"FP32","shape":[3],"data":[3,7,11]`},
		{"completed by the graph", "alone/infer", `{"parameters":{"timeout":60000000},"inputs":[{"name":"in","datatype":"FP32","shape":[1,2,2],"data":[1,2,3,4]}]}`, `"shape":[1,2,2],"data":[1,2,3,4]`},
		{"a version", "sampled/versions/1/infer", row(5), `"shape":[1,5]`},
		{"generate", "text/generate", `{"in":[1,2,3,4]}`, `"twice":[2,4,6,8]`},
	} {
		code, text := ask(t, p, "/v2/models/"+c.path, c.body)
		if code != http.StatusOK || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want %s", c.name, code, text, c.want)
		}
	}

	for _, c := range []struct{ path, body, want string }{
		{"text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,2,2],"data":[1,2,3,4]}]}`, "shape [1 2 2]: must be [-1 -1]"},
		{"text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,-2],"data":[]}]}`, "dimensions must be 0 or more"},
		{"text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,0],"data":[1]}]}`, "4 bytes of data: shape [1 0] of FP32 takes 0"},
		{"text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,3],"data":[1,2]}]}`, "8 bytes of data: shape [1 3] of FP32 takes 12"},
		{"text/infer", `{"inputs":[{"name":"in","datatype":"INT32","shape":[1,3],"data":[1,2,3]}]}`, "must be FP32"},
		{"text/infer", `{"inputs":[]}`, `input \"in\": is missing`},
		{"text/infer", `{"inputs":[{"name":"other","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}`, `no such input; the model has \"in\"`},
		{"text/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,1000000000],"data":[1]}]}`, "want dimensions from 0 on and at most"},
		{"whole/generate", `{"in":[1,2,3,4]}`, "more than one dimension is open"},
	} {
		code, text := ask(t, p, "/v2/models/"+c.path, c.body)
		if code != http.StatusBadRequest || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, want 400 with %s", c.body, code, text, c.want)
		}
	}

	if _, text := ask(t, p, "/v2/models/text", ""); !strings.Contains(text, `"versions":["1"]`) || !strings.Contains(text, `"shape":[-1,-1]`) {
		t.Errorf("metadata: %s", text)
	}
	if _, text := ask(t, p, "/v2/models/text/config", ""); !strings.Contains(text, `"dims":["-1"]`) && !strings.Contains(text, `"dims":[-1]`) {
		t.Errorf("configuration: %s", text)
	}
	if _, text := ask(t, p, "/v2/models/text/stats", ""); strings.Count(text, `"name":"text"`) != 1 || !strings.Contains(text, `"inference_count":6`) {
		t.Errorf("statistics are not those of all shapes together: %s", text)
	}
	_, index := ask(t, p, "/v2/repository/index", "{}")
	if strings.Contains(index, "@") || !strings.Contains(index, `{"name":"text","reason":"","state":"READY","version":"1"}`) || !strings.Contains(index, "outputs whose shape follows from the values") {
		t.Errorf("index: %s", index)
	}
}

// TestConformanceShapesAreBounded: a model has as many shape classes as shapes_max says, the next is refused and those that
// there are go on.
func TestConformanceShapesAreBounded(t *testing.T) {
	p := serveReal(t, variableRepository(t), nil)
	for _, n := range []int{1, 2, 1} {
		if code, text := ask(t, p, "/v2/models/few/infer", row(n)); code != http.StatusOK {
			t.Errorf("a row of %d: %d %s", n, code, text)
		}
	}
	if code, text := ask(t, p, "/v2/models/few/infer", row(3)); code != http.StatusTooManyRequests || !strings.Contains(text, "has 2 shape classes, the most that it may have (parameter shapes_max of its configuration): 3 would be one more") {
		t.Errorf("one class too many: %d %s", code, text)
	}
	if code, text := ask(t, p, "/v2/models/few/infer", row(2)); code != http.StatusOK {
		t.Errorf("a class of before: %d %s", code, text)
	}
}

// TestRequestsOfOneShapeBatchTogether: over gRPC, rows of two shapes come at once; none is padded. The model takes long enough
// for rows to gather.
func TestRequestsOfOneShapeBatchTogether(t *testing.T) {
	c := config(t)
	put(t, c.Models, "text/config.pbtxt", []byte(`platform: "emulated" max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "twice" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "30" } }
`+slow))
	p := servedWith(t, c)
	conn, err := grpc.NewClient(p.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := oip.NewGRPCInferenceServiceClient(conn)

	var wait sync.WaitGroup
	for i := range 16 {
		wait.Go(func() {
			n := int64(2 + i%2)
			r, err := client.ModelInfer(t.Context(), &oip.ModelInferRequest{ModelName: "text", Inputs: []*oip.ModelInferRequest_InferInputTensor{
				{Name: "in", Datatype: "FP32", Shape: []int64{4, n}, Contents: &oip.InferTensorContents{Fp32Contents: make([]float32, 4*n)}}}})
			if err != nil || !slices.Equal(r.Outputs[0].Shape, []int64{4, n}) || r.ModelVersion != "1" || len(r.RawOutputContents[0]) != int(16*n) {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	wait.Wait()

	// Of 64 rows of two shapes some ran together.
	_, text := ask(t, p, "/v2/models/text/stats", "")
	if !strings.Contains(text, `"inference_count":64`) || !regexp.MustCompile(`"batch_size":[2-8]`).MatchString(text) {
		t.Errorf("no batches: %s", text)
	}
}
