//go:build linux

package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/deploy"
)

// The conformance tests here serve real models from a repository as Triton's users have them; those of
// frontend/gateway go through the protocol's pages. "make conformance" runs both.

// file is one file of a repository.
type file struct {
	path string // below the repository
	text []byte
}

// graph builds an ONNX file.
func graph(t testing.TB, name string, build func(*onnx.Builder)) []byte {
	t.Helper()
	g := onnx.NewBuilder(name)
	build(g)
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	return m.Marshal()
}

// identity is a graph whose output "out" is its input "in".
func identity(t testing.TB, datatype onnx.DataType, dims []onnx.Dim) []byte {
	return graph(t, "identity", func(g *onnx.Builder) {
		in := g.Input("in", datatype, dims)
		g.Output("out", g.Node("Identity", []string{in}), datatype, dims)
	})
}

// writeRepository writes files below a fresh directory.
func writeRepository(t testing.TB, files ...file) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f.path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, f.text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serveReal serves a repository with ONNX Runtime as "downbeat serve" does and returns the parts. change may
// adapt the configuration; nil: as it is.
func serveReal(t testing.TB, dir string, change func(*deploy.Config)) *downbeat.System {
	t.Helper()
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	c := deploy.Default()
	c.HTTP, c.GRPC, c.Models, c.Executors, c.LogLevel = "127.0.0.1:0", "127.0.0.1:0", dir, 1, "error"
	if change != nil {
		change(&c)
	}
	c.Listen = ""
	return started(t, c, downbeat.Scheduler|downbeat.Backend|downbeat.Gateway)
}

// ask makes one REST call; an empty body is a GET.
func ask(t testing.TB, s *downbeat.System, path, body string) (int, string) {
	t.Helper()
	var w *http.Response
	var err error
	if body == "" {
		w, err = http.Get("http://" + s.Config().HTTP + path)
	} else {
		w, err = http.Post("http://"+s.Config().HTTP+path, "application/json", strings.NewReader(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, string(text)
}

const slow = `parameters { key: "slo_ms" value { string_value: "60000" } }
`

// TestConformanceLabels: classification tells the labels of a real repository, from the file to the client.
func TestConformanceLabels(t *testing.T) {
	p := serveReal(t, writeRepository(t,
		file{"classes/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))},
		file{"classes/labels.txt", []byte("car\nvan\nlorry\n")},
		file{"classes/config.pbtxt", []byte(`backend: "onnxruntime" max_batch_size: 8
input [ { name: "in" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
` + slow)}), nil)
	code, text := ask(t, p, "/v2/models/classes/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,3],"data":[0.5,2,1]}],"outputs":[{"name":"out","parameters":{"classification":2}}]}`)
	if want := `"data":["2.000000:1:van","1.000000:2:lorry"]`; code != http.StatusOK || !strings.Contains(text, want) {
		t.Errorf("%d %s, want %s", code, text, want)
	}
	if _, text := ask(t, p, "/v2/models/classes/config", ""); !strings.Contains(text, `"label_filename":"labels.txt"`) {
		t.Errorf("config: %s", text)
	}
}

// TestConformanceUnbatched: a model with max_batch_size 0 is described as it is, and batches of 1 serve it.
func TestConformanceUnbatched(t *testing.T) {
	p := serveReal(t, writeRepository(t,
		file{"whole/1/model.onnx", identity(t, onnx.Float, onnx.Fixed(2, 3))},
		file{"whole/config.pbtxt", []byte(`platform: "onnxruntime_onnx"
input [ { name: "in" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
` + slow)}), nil)
	if _, text := ask(t, p, "/v2/models/whole", ""); !strings.Contains(text, `"inputs":[{"name":"in","datatype":"FP32","shape":[2,3]}]`) {
		t.Errorf("metadata: %s", text)
	}
	if _, text := ask(t, p, "/v2/models/whole/config", ""); !strings.Contains(text, `"max_batch_size":0`) {
		t.Errorf("config: %s", text)
	}
	code, text := ask(t, p, "/v2/models/whole/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}`)
	if code != http.StatusOK || !strings.Contains(text, `"shape":[2,3],"data":[1,2,3,4,5,6]`) {
		t.Errorf("%d %s", code, text)
	}
}

// TestConformanceBytes: models of texts serve without being told what texts they take, or are told by model_warmup; a
// picture in one element is a matter of bytes_max.
func TestConformanceBytes(t *testing.T) {
	numbers := graph(t, "numbers", func(g *onnx.Builder) {
		in := g.Input("in", onnx.String, onnx.Batched(1))
		g.Output("out", g.Node("Cast", []string{in}, onnx.Int("to", int64(onnx.Float))), onnx.Float, onnx.Batched(1))
	})
	const numbersConfig = `backend: "onnxruntime" max_batch_size: 4
input [ { name: "in" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] } ]
` + slow
	p := serveReal(t, writeRepository(t,
		file{"numbers/1/model.onnx", numbers}, file{"numbers/config.pbtxt", []byte(numbersConfig)},
		file{"told/1/model.onnx", numbers}, file{"told/warmup/one", []byte("\x03\x00\x00\x001.5")},
		file{"told/config.pbtxt", []byte(numbersConfig + `model_warmup { name: "w" batch_size: 2 count: 3
inputs { key: "in" value { data_type: TYPE_STRING dims: 1 input_data_file: "one" } } }`)},
		file{"cut/1/model.onnx", numbers}, file{"cut/warmup/one", []byte("\x04\x00\x00\x001.5")},
		file{"cut/config.pbtxt", []byte(numbersConfig + `model_warmup { name: "w"
inputs { key: "in" value { data_type: TYPE_STRING dims: 1 input_data_file: "one" } } }`)},
		file{"large/1/model.onnx", identity(t, onnx.String, onnx.Batched(1))},
		file{"large/config.pbtxt", []byte(`backend: "onnxruntime" max_batch_size: 4
input [ { name: "in" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "out" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "bytes_max" value { string_value: "2000000" } }
` + slow)}), nil)

	body := func(text string) string {
		return `{"inputs":[{"name":"in","datatype":"BYTES","shape":[1,1],"data":["` + text + `"]}]}`
	}
	for _, model := range []string{"numbers", "told"} {
		if code, text := ask(t, p, "/v2/models/"+model+"/infer", body("2.5")); code != http.StatusOK || !strings.Contains(text, `"data":[2.5]`) {
			t.Errorf("%s: %d %s", model, code, text)
		}
	}
	if code, text := ask(t, p, "/v2/models/cut", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "element 0 is cut") {
		t.Errorf("a model whose sample is cut: %d %s", code, text)
	}
	picture := strings.Repeat("x", 1_900_000)
	if code, text := ask(t, p, "/v2/models/large/infer", body(picture)); code != http.StatusOK || !strings.Contains(text, picture) {
		t.Errorf("a large element: %d %.200s", code, text)
	}
	if code, text := ask(t, p, "/v2/models/large/infer", body(picture+picture)); code != http.StatusBadRequest || !strings.Contains(text, "must be at most 2000000") {
		t.Errorf("one too large: %d %.200s", code, text)
	}
}

// TestConformanceRepository: a directory with a graph alone serves; a model that cannot be served is in the index with
// its reason; configurations are taken from several repositories.
func TestConformanceRepository(t *testing.T) {
	a := writeRepository(t, file{"alone/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))},
		file{"ragged/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))},
		file{"ragged/config.pbtxt", []byte(`input [ { name: "in" data_type: TYPE_FP32 dims: [ 3 ] allow_ragged_batch: true } ]`)},
		file{"zero/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))},
		file{"zero/config.pbtxt", []byte(`input [ { name: "in" data_type: TYPE_FP32 dims: [ 0 ] } ]`)},
		file{"corrupt/1/model.onnx", []byte("not a graph")},
		file{"sequence/config.pbtxt", []byte("sequence_batching { iterative_sequence: true }")}, file{"sequence/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))})
	b := writeRepository(t, file{"other/2/model.onnx", identity(t, onnx.Int32, onnx.Fixed(2, 2))})
	p := serveReal(t, a+","+b, nil)

	if _, text := ask(t, p, "/v2/models/alone", ""); !strings.Contains(text, `"platform":"onnxruntime_onnx","versions":["1"]`) || !strings.Contains(text, `"shape":[-1,3]`) {
		t.Errorf("metadata: %s", text)
	}
	code, text := ask(t, p, "/v2/models/alone/infer", `{"parameters":{"timeout":60000000},"inputs":[{"name":"in","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]}`)
	if code != http.StatusOK || !strings.Contains(text, `"shape":[2,3],"data":[1,2,3,4,5,6]`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := ask(t, p, "/v2/models/other/versions/2/infer", `{"parameters":{"timeout":60000000},"inputs":[{"name":"in","datatype":"INT32","shape":[2,2],"data":[1,2,3,4]}]}`); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}

	_, index := ask(t, p, "/v2/repository/index", "{}")
	for _, want := range []string{`{"name":"alone","reason":"","state":"READY","version":"1"}`, `{"name":"other","reason":"","state":"READY","version":"2"}`,
		`{"name":"ragged","reason":`, "ragged batches are not supported", "want an integer from 1", `{"name":"corrupt","reason":`, "not a valid ONNX model", `{"name":"sequence","reason":`, "every request has one answer"} {
		if !strings.Contains(index, want) {
			t.Errorf("index %s lacks %s", index, want)
		}
	}
	if code, text := ask(t, p, "/v2/health/ready", ""); code != http.StatusOK {
		t.Errorf("ready: %d %s", code, text)
	}
}

// TestConformanceStrict: with strict models a graph alone does not serve, and with strict readiness that makes the
// gateway unready.
func TestConformanceStrict(t *testing.T) {
	dir := writeRepository(t, file{"alone/1/model.onnx", identity(t, onnx.Float, onnx.Batched(3))},
		file{"full/1/model.onnx", identity(t, onnx.Float, onnx.Fixed(2))},
		file{"full/config.pbtxt", []byte(`backend: "onnxruntime"
input [ { name: "in" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 2 ] } ]
` + slow)})
	p := serveReal(t, dir, func(c *deploy.Config) { c.Protocol.StrictModels, c.Protocol.StrictReadiness = true, true })
	if _, index := ask(t, p, "/v2/repository/index", "{}"); !strings.Contains(index, `{"name":"full","reason":"","state":"READY"`) || !strings.Contains(index, "config.pbtxt: no such file") {
		t.Errorf("index: %s", index)
	}
	if code, text := ask(t, p, "/v2/health/ready", ""); code != http.StatusServiceUnavailable {
		t.Errorf("ready: %d %s", code, text)
	}
}
