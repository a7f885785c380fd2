//go:build linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	downbeat "downbeat.dev"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend/gateway/oip"
)

// emptyRepository has models that run on tensors without elements: one whose sum over none is a number, one that joins two inputs,
// and one of texts.
func emptyRepository(t testing.TB) string {
	dims := []onnx.Dim{{Name: "batch", Size: -1}, {Name: "length", Size: -1}}
	join := graph(t, "join", func(g *onnx.Builder) {
		a, b := g.Input("a", onnx.Float, dims), g.Input("b", onnx.Float, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "other", Size: -1}})
		g.Output("out", g.Node("Concat", []string{a, b}, onnx.Int("axis", 1)), onnx.Float, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "both", Size: -1}})
	})
	return writeRepository(t,
		file{"total/1/model.onnx", total(t, dims, []onnx.Dim{{Name: "batch", Size: -1}}, 1)}, file{"total/config.pbtxt", []byte(slow)},
		file{"join/1/model.onnx", join}, file{"join/config.pbtxt", []byte(slow)},
		file{"text/1/model.onnx", identity(t, onnx.String, dims)}, file{"text/config.pbtxt", []byte(slow)})
}

// TestConformanceEmptyTensors: a dimension may have size 0, in inputs and in outputs; beside it others have elements.
func TestConformanceEmptyTensors(t *testing.T) {
	p := serveReal(t, emptyRepository(t), nil)
	t.Run("REST", func(t *testing.T) { askEmptyREST(t, p) })
	t.Run("binary", func(t *testing.T) { askEmptyBinary(t, p) })
	t.Run("gRPC", func(t *testing.T) { askEmptyGRPC(t, p) })
	t.Run("library", func(t *testing.T) { askEmptyLibrary(t, p) })
}

// TestOutputsThatNobodyCanProbeAreTold: the binding makes no results of 16-bit floats, and none without dimensions. A model that has
// one beside open dimensions is left out with the reason, and the others are served.
func TestOutputsThatNobodyCanProbeAreTold(t *testing.T) {
	open := []onnx.Dim{{Name: "length", Size: -1}}
	p := serveReal(t, writeRepository(t,
		file{"half/1/model.onnx", identity(t, onnx.Float16, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "length", Size: -1}})},
		file{"sum/1/model.onnx", total(t, open, nil, 0)},
		file{"good/1/model.onnx", identity(t, onnx.Float, open)}), nil)

	_, index := ask(t, p, "/v2/repository/index", "{}")
	if !strings.Contains(index, `"name":"good","reason":"","state":"READY"`) || strings.Count(index, "Error creating tensor from ort") != 2 {
		t.Errorf("index: %s", index)
	}
}

func askEmptyREST(t *testing.T, p *downbeat.System) {
	input := func(name, datatype, shape, data string) string {
		return fmt.Sprintf(`{"name":%q,"datatype":%q,"shape":%s,"data":%s}`, name, datatype, shape, data)
	}
	for _, c := range []struct{ path, inputs, want string }{
		{"total/infer", input("in", "FP32", "[1,0]", "[]"), `{"name":"sum","datatype":"FP32","shape":[1,1],"data":[0]},{"name":"twice","datatype":"FP32","shape":[1,0],"data":[]}`},
		{"total/infer", input("in", "FP32", "[3,0]", "[[],[],[]]"), `{"name":"sum","datatype":"FP32","shape":[3,1],"data":[0,0,0]},{"name":"twice","datatype":"FP32","shape":[3,0],"data":[]}`},
		{"total/infer", `{"name":"in","datatype":"FP32","shape":[0]}`, `"data":[0]`},
		{"join/infer", input("a", "FP32", "[1,0]", "[]") + "," + input("b", "FP32", "[1,2]", "[7,8]"), `"shape":[1,2],"data":[7,8]`},
		{"join/infer", input("a", "FP32", "[2,1]", "[1,2]") + "," + input("b", "FP32", "[2,0]", "[]"), `"shape":[2,1],"data":[1,2]`},
		{"join/infer", input("a", "FP32", "[1,0]", "[]") + "," + input("b", "FP32", "[1,0]", "[]"), `"shape":[1,0],"data":[]`},
		{"text/infer", input("in", "BYTES", "[2,0]", "[]"), `"datatype":"BYTES","shape":[2,0],"data":[]`},
		{"text/infer", input("in", "BYTES", "[1,1]", `[""]`), `"shape":[1,1],"data":[""]`},
	} {
		if code, text := ask(t, p, "/v2/models/"+c.path, `{"inputs":[`+c.inputs+`]}`); code != http.StatusOK || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s, want %s", c.path, c.inputs, code, text, c.want)
		}
	}
	if code, text := ask(t, p, "/v2/models/total/generate", `{"in":[]}`); code != http.StatusOK || !strings.Contains(text, `"twice":[]`) {
		t.Errorf("generate: %d %s", code, text)
	}
}

// askEmptyBinary sends and gets binary tensors of 0 bytes.
func askEmptyBinary(t *testing.T, p *downbeat.System) {
	const text = `{"parameters":{"binary_data_output":true},"inputs":[{"name":"in","datatype":"FP32","shape":[2,0],"parameters":{"binary_data_size":0}}]}`
	r, err := http.NewRequest(http.MethodPost, "http://"+p.Config().HTTP+"/v2/models/total/infer", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(text)))
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()

	// The sums of two rows are what there is behind the JSON.
	body, err := io.ReadAll(w.Body)
	n, _ := strconv.Atoi(w.Header.Get("Inference-Header-Content-Length"))
	if err != nil || w.StatusCode != http.StatusOK || len(body) != n+8 ||
		!strings.Contains(string(body), `"shape":[2,0],"parameters":{"binary_data_size":0}`) {
		t.Errorf("%d %q %v", w.StatusCode, body, err)
	}
}

// askEmptyGRPC sends raw, typed and no contents.
func askEmptyGRPC(t *testing.T, p *downbeat.System) {
	conn, err := grpc.NewClient(p.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := oip.NewGRPCInferenceServiceClient(conn)

	for name, r := range map[string]*oip.ModelInferRequest{
		"raw":   {Inputs: []*oip.ModelInferRequest_InferInputTensor{{}}, RawInputContents: [][]byte{{}}},
		"typed": {Inputs: []*oip.ModelInferRequest_InferInputTensor{{Contents: &oip.InferTensorContents{}}}},
		"none":  {Inputs: []*oip.ModelInferRequest_InferInputTensor{{}}},
	} {
		r.ModelName = "total"
		r.Inputs[0].Name, r.Inputs[0].Datatype, r.Inputs[0].Shape = "in", "FP32", []int64{1, 0}
		a, err := client.ModelInfer(t.Context(), r)
		if err != nil || len(a.Outputs) != 2 || !slices.Equal(a.Outputs[1].Shape, []int64{1, 0}) || len(a.RawOutputContents) != 2 ||
			len(a.RawOutputContents[0]) != 4 || len(a.RawOutputContents[1]) != 0 {
			t.Errorf("%s: %v %v", name, a, err)
		}
	}
}

func askEmptyLibrary(t *testing.T, p *downbeat.System) {
	c := p.Client()
	in, err := c.NewShapedInput(t.Context(), "join", map[string][]int64{"a": {0}, "b": {0}})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Free()
	if err := in.Tensor("a").SetFloat32s(nil); err != nil || len(in.Bytes()) != 0 {
		t.Errorf("an input of %d bytes: %v", len(in.Bytes()), err)
	}
	for range 3 {
		r, err := c.Infer(t.Context(), "join", in)
		if err != nil || len(r.Data) != 0 || !slices.Equal(r.Output("out").Info().Shape, []int64{0}) {
			t.Errorf("%+v %v", r, err)
		}
		r.Release()
	}
}
