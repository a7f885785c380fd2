package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/frontend/internal/echo"
)

// The conformance tests follow the pages of the Open Inference Protocol and of Triton's extensions, with a test per
// page and a line per point that clients rely on. "make conformance" runs them and those of cmd/downbeat, which serve
// real models.

// TestConformanceMetadata: the pages on server and model metadata.
func TestConformanceMetadata(t *testing.T) {
	server, _ := rest(t, Options{Name: "triton"})
	_, _, text := call(t, "GET", server.URL+"/v2", nil)
	if !strings.Contains(string(text), `"name":"triton"`) {
		t.Errorf("server metadata: %s", text)
	}

	// A model with max_batch_size 0 shows no batch dimension.
	_, _, text = call(t, "GET", server.URL+"/v2/models/whole", nil)
	if !strings.Contains(string(text), `"shape":[2,3]`) || !strings.Contains(string(text), `"shape":[6]`) {
		t.Errorf("model metadata: %s", text)
	}

	_, _, text = call(t, "GET", server.URL+"/v2/models/nope/versions/7", nil)
	if !strings.HasPrefix(string(text), `{"error":"Request for unknown model: 'nope'`) {
		t.Errorf("unknown model: %s", text)
	}
}

// TestConformanceModelConfiguration: the model configuration extension answers with the fields of config.pbtxt.
func TestConformanceModelConfiguration(t *testing.T) {
	server, _ := rest(t, Options{})
	var c map[string]any
	if _, _, text := call(t, "GET", server.URL+"/v2/models/whole/config", nil); json.Unmarshal(text, &c) != nil {
		t.Fatalf("%s", text)
	}
	for field, want := range map[string]any{
		"name": "whole", "platform": "onnxruntime_onnx", "backend": "onnxruntime", "max_batch_size": 0.0,
		"version_policy": map[string]any{"specific": map[string]any{"versions": []any{1.0}}},
		"parameters":     map[string]any{"slo_ms": map[string]any{"string_value": "600000"}},
	} {
		if !reflect.DeepEqual(c[field], want) {
			t.Errorf("%s: %v, want %v", field, c[field], want)
		}
	}
	if out := c["output"].([]any)[0].(map[string]any); out["label_filename"] != "l.txt" || !reflect.DeepEqual(out["reshape"], map[string]any{"shape": []any{2.0, 3.0}}) {
		t.Errorf("output %v", out)
	}
	if _, there := c["dynamic_batching"]; there {
		t.Error("a model without batches says that it batches")
	}

	_, _, text := call(t, "GET", server.URL+"/v2/models/sum/config", nil)
	if !strings.Contains(string(text), `"dynamic_batching":`) || !strings.Contains(string(text), `"max_batch_size":8`) || !strings.Contains(string(text), `"latest":{"num_versions":1}`) {
		t.Errorf("a model without a configuration text: %s", text)
	}
}

// TestConformanceInference: points of the inference page and of the parameters and schedule policy extensions.
func TestConformanceInference(t *testing.T) {
	server, _ := rest(t, Options{})
	with := func(p string) string { return `{"parameters":{` + p + `},` + sumBody[1:] }
	floatsIn := func(data string) string {
		return `{"inputs":[{"name":"a","shape":[2],"datatype":"FP32","data":` + data + `},{"name":"b","shape":[2],"datatype":"FP32","data":[0,0]}],"outputs":[{"name":"sum"}]}`
	}
	for _, c := range []struct{ name, model, body, want string }{
		{"timeout 0 is none", "sum", with(`"timeout":0`), `"id":"q"`},
		{"sequence_id 0 is none", "sum", with(`"sequence_id":0,"sequence_start":false,"sequence_end":false`), `"id":"q"`},
		{"custom parameters mean nothing", "sum", with(`"mine":{"a":[1]},"yours":"x"`), `"id":"q"`},
		{"NaN and infinities", "sum", floatsIn(`["NaN","-Infinity"]`), `"data":["NaN","-Infinity"]`},
		{"NaN and infinities as Python writes them", "sum", floatsIn(`[Infinity, NaN]`), `"data":["Infinity","NaN"]`},
		{"no batch dimension", "whole", `{"inputs":[{"name":"in","shape":[2,3],"datatype":"FP32","data":[1,2,3,4,5,6]}]}`, `"shape":[6],"data":[1,2,3,4,5,6]`},
	} {
		code, _, text := call(t, "POST", server.URL+"/v2/models/"+c.model+"/infer", strings.NewReader(c.body))
		if code != http.StatusOK || !strings.Contains(string(text), c.want) || !json.Valid(text) {
			t.Errorf("%s: %d %s", c.name, code, text)
		}
	}

	// A retry may help a request dropped because of load, but not one that never had enough time.
	for budget, want := range map[string]string{"0": "1", "1000": ""} {
		body := strings.Replace(with(`"timeout":`+budget), "[1,2]}", "[-1,2]}", 1)
		code, h, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body))
		if code != http.StatusGatewayTimeout || h.Get("Retry-After") != want {
			t.Errorf("timeout %s: %d %s, Retry-After %q", budget, code, text, h.Get("Retry-After"))
		}
	}
}

// TestPrioritiesOfTheProtocol: 1 is the highest priority, whose requests are kept longest; 0 means the default, and
// levels beyond 255 are the lowest.
func TestPrioritiesOfTheProtocol(t *testing.T) {
	for level, want := range map[int64]uint8{0: 0, 1: 255, 2: 254, 255: 1, 256: 1, 1 << 32: 1, math.MaxInt64: 1} {
		in := new(inference)
		if f := in.takeParameter("priority", level); f != nil || in.priority != want {
			t.Errorf("priority %d: %v, counts as %d, want %d", level, f, in.priority, want)
		}
	}

	// Both protocols accept a number of more than 32 bits.
	server, _ := rest(t, Options{})
	code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(`{"parameters":{"priority":4294967296},`+sumBody[1:]))
	if code != http.StatusOK {
		t.Errorf("over REST: %d %s", code, text)
	}
	conn, _ := rpc(t, Options{})
	r := sumRequest(floats(1, 2), floats(3, 4))
	r.Parameters = map[string]*oip.InferParameter{"priority": {ParameterChoice: &oip.InferParameter_Uint64Param{Uint64Param: 1 << 32}}}
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), r); err != nil {
		t.Errorf("over gRPC: %v", err)
	}
}

// TestConformanceBinaryData: the binary tensor data extension, here its raw binary request.
func TestConformanceBinaryData(t *testing.T) {
	server, _ := rest(t, Options{})
	raw := func(model string, body []byte) (int, string, []byte) {
		code, h, text := call(t, "POST", server.URL+"/v2/models/"+model+"/infer", strings.NewReader(string(body)), headerLength, "0")
		if n := len(text); code == http.StatusOK {
			head := h.Get(headerLength)
			k := strings.LastIndexByte(string(text[:n]), '}') + 1
			if head == "" {
				t.Errorf("%s: no %s", model, headerLength)
			}
			return code, string(text[:k]), text[k:]
		}
		return code, string(text), nil
	}

	in := floats(1, 2, 3, 4, 5, 6)
	if code, head, data := raw("whole", in); code != http.StatusOK || string(data) != string(in) || !strings.Contains(head, `"shape":[6],"parameters":{"binary_data_size":24}`) {
		t.Errorf("%d %s %x", code, head, data)
	}
	if code, head, data := raw("text", []byte("hi")); code != http.StatusOK || string(data) != "\x04\x00\x00\x00<hi>" || !strings.Contains(head, `"shape":[1,1]`) {
		t.Errorf("one BYTES element: %d %s %q", code, head, data)
	}

	// A client that accepts compressed answers also takes plain ones.
	_, h, text := call(t, "POST", server.URL+"/v2/models/whole/infer", strings.NewReader(string(in)), headerLength, "0", "Accept-Encoding", "gzip, deflate")
	if h.Get("Content-Encoding") != "" || !strings.HasSuffix(string(text), string(in)) {
		t.Errorf("an answer to a client that accepts gzip: %v %q", h, text)
	}

	if code, text, _ := raw("whole", in[:20]); code != http.StatusBadRequest || !strings.Contains(text, "20 bytes of data: shape [2 3] of FP32 takes 24") {
		t.Errorf("short: %d %s", code, text)
	}
	if code, text, _ := raw("sum", in); code != http.StatusBadRequest || !strings.Contains(text, "needs a model with one input, this one has 2") {
		t.Errorf("two inputs: %d %s", code, text)
	}
}

// TestConformanceClassification: "value:index", and the label if there is one.
func TestConformanceClassification(t *testing.T) {
	server, _ := rest(t, Options{})
	body := `{"inputs":[{"name":"pixels","datatype":"UINT8","shape":[2,3,2,2],"data":[1,9,3,7,0,0,0,0,0,0,0,0,9,8,7,6,0,0,0,0,0,0,0,0]}],"outputs":[{"name":"scores","parameters":{"classification":3}}]}`
	_, _, text := call(t, "POST", server.URL+"/v2/models/image/infer", strings.NewReader(body))
	if want := `"shape":[2,3],"data":["-1.000000:1:dog","-3.000000:3","-7.000000:2:","-1.000000:0:cat","-2.000000:1:dog","-3.000000:2:"]`; !strings.Contains(string(text), want) {
		t.Errorf("%s, want %s", text, want)
	}
}

// TestConformanceStatistics: every field of the statistics extension is present, with times by batch size.
func TestConformanceStatistics(t *testing.T) {
	_, url := wholeGateway(t, map[string]string{"car": emulated("0.1", "1", "1500", "8")}, 1)
	load(t, url, "car", 100, 200*time.Millisecond)

	type duration struct{ Count, NS *uint64 }
	type statistics struct {
		Stats []struct {
			Executions uint64              `json:"execution_count"`
			Inference  map[string]duration `json:"inference_stats"`
			Batches    []struct {
				Size    uint64   `json:"batch_size"`
				Input   duration `json:"compute_input"`
				Compute duration `json:"compute_infer"`
				Output  duration `json:"compute_output"`
			} `json:"batch_stats"`
			Memory    []any          `json:"memory_usage"`
			Responses map[string]any `json:"response_stats"`
		} `json:"model_stats"`
	}

	// An execution counts when its batch is sent, its time when the backend reports it, which may be after its last
	// answer.
	var all statistics
	var text []byte
	until(t, func() bool {
		all = statistics{}
		_, _, text = call(t, "GET", url+"/v2/models/car/stats", nil)
		if err := json.Unmarshal(text, &all); err != nil || len(all.Stats) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		reported := uint64(0)
		for _, b := range all.Stats[0].Batches {
			if b.Compute.Count != nil {
				reported += *b.Compute.Count
			}
		}
		return reported > 0 && reported == all.Stats[0].Executions
	})

	s := all.Stats[0]
	for _, field := range []string{"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"} {
		if d := s.Inference[field]; d.Count == nil || d.NS == nil {
			t.Errorf("inference_stats.%s is missing: %s", field, text)
		}
	}
	if s.Memory == nil || s.Responses == nil {
		t.Errorf("memory_usage or response_stats is missing: %s", text)
	}

	// A batch of b takes b·0.1 ms + 1 ms on the emulated GPU. On a loaded host it may measure much shorter, because
	// its start is recorded late. The remaining time still distinguishes ns from any larger unit.
	for _, b := range s.Batches {
		if b.Compute.Count == nil || b.Compute.NS == nil || b.Input.NS == nil || b.Output.NS == nil {
			t.Fatalf("batch_stats of size %d lack a field: %s", b.Size, text)
		}
		if least := *b.Compute.Count * 10_000; *b.Compute.NS < least {
			t.Errorf("%d batches of %d took %d ns, less than %d", *b.Compute.Count, b.Size, *b.Compute.NS, least)
		}
	}
}

// TestConformanceRepositoryIndex: the body of the repository extension's index request.
func TestConformanceRepositoryIndex(t *testing.T) {
	server, _ := rest(t, Options{})
	for body, idle := range map[string]bool{"": true, "{}": true, `{"ready":false}`: true, `{"ready":true}`: false} {
		code, _, text := call(t, "POST", server.URL+"/v2/repository/index", strings.NewReader(body))
		if code != http.StatusOK || strings.Contains(string(text), `"idle"`) != idle {
			t.Errorf("%q: %d %s", body, code, text)
		}
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/repository/index", strings.NewReader(`{"ready":3}`)); code != http.StatusBadRequest || !strings.Contains(string(text), "'3' where false must be") {
		t.Errorf("%d %s", code, text)
	}
}

// TestConformanceFailedModels: a model that a backend cannot serve is in the index, not ready, with its reason; it
// makes the gateway unready only under strict readiness.
func TestConformanceFailedModels(t *testing.T) {
	models := []model.Info{testModels[0], {ID: 9, Name: "broken", Version: "2", Reason: "config.pbtxt:3:1: no such thing"}}
	for _, strict := range []bool{false, true} {
		s, err := echo.New(models, compute)
		if err != nil {
			t.Fatal(err)
		}
		c, err := frontend.Dial(t.Context(), frontend.Options{Scheduler: s.Addr})
		if err != nil {
			t.Fatal(err)
		}
		g := New(c, Options{StrictReadiness: strict})
		server := httptest.NewServer(g.rest.Handler)

		_, _, text := call(t, "POST", server.URL+"/v2/repository/index", nil)
		if !strings.Contains(string(text), `{"name":"broken","reason":"config.pbtxt:3:1: no such thing","state":"UNAVAILABLE","version":"2"}`) {
			t.Errorf("index: %s", text)
		}
		for path, want := range map[string]int{"/v2/health/ready": map[bool]int{false: 200, true: 503}[strict], "/v2/models/broken/ready": 503, "/v2/models/sum/ready": 200} {
			if code, _, text := call(t, "GET", server.URL+path, nil); code != want {
				t.Errorf("strict %v, %s: %d %s, want %d", strict, path, code, text, want)
			}
		}
		code, _, text := call(t, "POST", server.URL+"/v2/models/broken/infer", strings.NewReader("{}"))
		if code != 503 || !strings.HasPrefix(string(text), `{"error":"Request for unknown model: 'broken' has no available versions: config.pbtxt:3:1`) {
			t.Errorf("infer: %d %s", code, text)
		}

		http.DefaultClient.CloseIdleConnections()
		server.Close()
		g.grpc.Stop()
		if err := errors.Join(c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestConformanceGRPC: the parts of the gRPC service that do not share REST's code.
func TestConformanceGRPC(t *testing.T) {
	conn, _ := rpc(t, Options{})
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()

	// Requests may be compressed as gzip or deflate, repeatedly over one connection.
	for range 3 {
		r, err := c.ModelInfer(ctx, sumRequest(floats(1, 2), floats(3, 4)), grpc.UseCompressor("deflate"))
		if err != nil || string(r.RawOutputContents[0]) != string(floats(4, 6)) {
			t.Fatalf("deflate: %v %v", r, err)
		}
	}

	zero := sumRequest(floats(1, 2), floats(3, 4))
	zero.Parameters = map[string]*oip.InferParameter{"timeout": whole(0), "sequence_id": whole(0)}
	if _, err := c.ModelInfer(ctx, zero); err != nil {
		t.Errorf("timeout 0: %v", err)
	}
	zero.Parameters["sequence_id"] = &oip.InferParameter{ParameterChoice: &oip.InferParameter_StringParam{StringParam: "s"}}
	if _, err := c.ModelInfer(ctx, zero); err == nil || !strings.Contains(err.Error(), "sequence s: the model keeps no sequences") {
		t.Errorf("text sequence: %v", err)
	}

	inf := float32(math.Inf(1))
	if r, err := c.ModelInfer(ctx, sumRequest(floats(inf, 0), floats(0, -inf))); err != nil || string(r.RawOutputContents[0]) != string(floats(inf, -inf)) {
		t.Errorf("infinities: %v %v", r, err)
	}

	logs, err := c.LogSettings(ctx, &oip.LogSettingsRequest{})
	if err != nil || !logs.Settings["log_info"].GetBoolParam() {
		t.Errorf("log settings: %v %v", logs, err)
	}

	// The only answer to a request of a stream is marked final.
	stream, err := c.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(sumRequest(floats(1, 2), floats(3, 4))); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || !r.InferResponse.Parameters["triton_final_response"].GetBoolParam() {
		t.Errorf("stream: %v %v", r, err)
	}
	_ = stream.CloseSend()
}

// TestConfigurationShowsSequences: sequence_batching has the file's values, with the idle time in force.
func TestConfigurationShowsSequences(t *testing.T) {
	m := &frontend.Model{ModelInfo: frontend.ModelInfo{Name: "counter", BatchMax: 8, Sequence: &model.Sequence{Idle: int64(time.Second)}}}
	m.Config = `sequence_batching { oldest { max_candidate_sequences: 4 }
		control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } ] } ]
		state [ { input_name: "in" output_name: "out" data_type: TYPE_INT32 dims: [ 3 ] initial_state: { data_type: TYPE_INT32 dims: [ 3 ] data_file: "zeros" } } ] }`
	c := modelConfig(m)
	of := c.GetSequenceBatching()
	if of.GetMaxSequenceIdleMicroseconds() != 1e6 || of.GetOldest().GetMaxCandidateSequences() != 4 || c.GetDynamicBatching() != nil {
		t.Errorf("%v, want the oldest of 4 sequences, idle for a second at most", c)
	}
	if in := of.GetControlInput(); len(in) != 1 || in[0].Name != "START" || len(in[0].Control) != 1 || !slices.Equal(in[0].Control[0].BoolFalseTrue, []bool{false, true}) {
		t.Errorf("controls %v, want START with false and true", in)
	}
	if state := of.GetState(); len(state) != 1 || state[0].OutputName != "out" || state[0].Dims[0] != 3 || state[0].InitialState[0].GetDataFile() != "zeros" {
		t.Errorf("states %v, want out of 3 elements that begins with a file", state)
	}

	// A configuration read by other means at least says that there are sequences.
	if m.Config = ""; modelConfig(m).GetSequenceBatching().GetMaxSequenceIdleMicroseconds() != 1e6 {
		t.Errorf("%v, want sequence_batching", modelConfig(m))
	}
}
