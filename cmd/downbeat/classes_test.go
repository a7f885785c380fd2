//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
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

// TestClassesFollowTheirModel: a reload of the same files keeps the shape classes, one of other files loads those that these run, an unload ends all.
func TestClassesFollowTheirModel(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", identity(t, onnx.Float, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}})}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "m"))
	infer := func(n int, want string) {
		t.Helper()
		if _, text := p.ask(t, "/v2/models/m/infer", row(n)); !strings.Contains(text, want) {
			t.Errorf("a row of %d: %s, want %s", n, text, want)
		}
	}
	classes := func() (all []string) {
		for _, m := range p.Backend().Hello().Models {
			if slices.Contains(m.Loaded, true) {
				all = append(all, m.Info.Version)
			}
		}
		return all
	}

	infer(2, `"data":[1,2]`)
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@2"}) {
		t.Errorf("after a reload of the same files: %q", got)
	}

	put(t, dir, "m/1/model.onnx", graph(t, "other", func(g *onnx.Builder) {
		dims := []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}}
		in := g.Input("in", onnx.Float, dims)
		g.Output("out", g.Node("Add", []string{in, in}), onnx.Float, dims)
	}))
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@2"}) {
		t.Errorf("after a load of other files: %q", got)
	}
	infer(2, `"data":[2,4]`)

	// Rows of three numbers are all that these files take.
	put(t, dir, "m/1/model.onnx", graph(t, "three", func(g *onnx.Builder) {
		dims := []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}}
		in := g.Input("in", onnx.Float, dims)
		g.Const(onnx.FloatTensor("by", []float32{1, 2, 3}, 3))
		g.Output("out", g.Node("Add", []string{in, "by"}), onnx.Float, dims)
	}))
	infer(3, `"data":[2,4,6]`)
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@3"}) {
		t.Errorf("after a load of files that run one class alone: %q", got)
	}
	infer(3, `"data":[2,4,6]`)
	infer(2, "does not run on it")

	p.control(t, "m/unload", "", http.StatusOK, "")
	if got := classes(); len(got) != 0 {
		t.Errorf("after the unload: %q", got)
	}
	infer(3, "unknown model")
	p.control(t, "m/load", "", http.StatusOK, "")
	infer(3, `"data":[2,4,6]`)
}

// TestReplacedModelsAreServedOn: while a model's files, and then its version, are replaced, requests that name no version go on being
// answered, also those of a shape class.
func TestReplacedModelsAreServedOn(t *testing.T) {
	t.Run("a shape class", func(t *testing.T) { replaceUnderLoad(t, onnx.Dim{Name: "n", Size: -1}) })
	t.Run("fixed dims", func(t *testing.T) { replaceUnderLoad(t, onnx.Dim{Size: 2}) })
}

// replaceUnderLoad asks a model for rows of two numbers while its files are replaced five times.
func replaceUnderLoad(t *testing.T, columns onnx.Dim) {
	dims := []onnx.Dim{{Name: "batch", Size: -1}, columns}
	add := func(by float32) []byte {
		return graph(t, "add", func(g *onnx.Builder) {
			in := g.Input("in", onnx.Float, dims)
			g.Const(onnx.FloatTensor("by", []float32{by}, 1))
			g.Output("out", g.Node("Add", []string{in, "by"}), onnx.Float, dims)
		})
	}
	dir := writeRepository(t, file{"m/1/model.onnx", add(0)}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "m"))

	// Callers ask all the time, and tell how many answers they have had.
	stop, answered := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for {
				if code, text := ask(t, p.System, "/v2/models/m/infer", row(2)); code != http.StatusOK {
					t.Errorf("%d %s", code, text)
					return
				}
				select {
				case <-stop:
					return
				case answered <- struct{}{}:
				default:
				}
			}
		})
	}

	ended := make(chan struct{}) // callers end early where a request failed
	go func() { wait.Wait(); close(ended) }()
	for i, at := range []string{"1", "1", "2", "2", "3"} {
		select {
		case <-answered:
		case <-ended:
		}
		put(t, dir, "m/"+at+"/model.onnx", add(float32(i+1)))
		p.control(t, "m/load", "", http.StatusOK, "")
		if _, text := p.ask(t, "/v2/models/m/infer", row(2)); !strings.Contains(text, fmt.Sprintf(`"data":[%d,%d]`, i+2, i+3)) {
			t.Errorf("load %d: %s", i+1, text)
		}
	}
	close(stop)
	<-ended
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
