package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/cuda/cudatest"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

func TestMain(m *testing.M) {
	cudatest.ServeOwner()
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run"))
}

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

// testModels are: sum, two tensors in and their sum out; text, BYTES in and out; image, for
// classification; idle, which no backend serves; and whole, whose tensors have no batch dimension.
var testModels = []model.Info{
	{ID: 1, Name: "sum", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("a", "FP32", 2), tensor("b", "FP32", 2)}, Outputs: []model.Tensor{tensor("sum", "FP32", 2), tensor("big", "BOOL", 2)}},
	{ID: 2, Name: "text", Version: "3", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("in", "BYTES", 1)}, Outputs: []model.Tensor{tensor("out", "BYTES", 1)}},
	{ID: 3, Name: "image", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{tensor("pixels", "UINT8", 3, 2, 2)}, Outputs: []model.Tensor{{Name: "scores", Datatype: "INT32", Shape: []int64{4}, Labels: []string{"cat", "dog", ""}}}},
	{ID: 4, Name: "idle", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 8, Platform: "test",
		Inputs: []model.Tensor{tensor("x", "INT64", 1)}, Outputs: []model.Tensor{tensor("y", "INT64", 1)}},
	{ID: 5, Name: "whole", Version: "1", SLO: int64(10 * time.Minute), BatchMax: 1, Ready: true, Platform: "onnxruntime_onnx", Unbatched: true,
		Inputs: []model.Tensor{tensor("in", "FP32", 2, 3)}, Outputs: []model.Tensor{tensor("out", "FP32", 6)}, Config: wholeConfig},
}

const wholeConfig = `name: "whole" backend: "onnxruntime" max_batch_size: 0
input [ { name: "in" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } label_filename: "l.txt" } ]
version_policy { specific { versions: [ 1 ] } }
parameters { key: "slo_ms" value { string_value: "600000" } }
instance_group [ { kind: KIND_CPU count: 2 } ]`

// compute is the backend of testModels. It answers a first number of -1 … -9 with the reason of that number.
func compute(s wire.Submit, in []byte) ([]byte, model.Reason) {
	f := func(i int) float32 { return math.Float32frombits(le.Uint32(in[4*i:])) }
	var out []byte
	switch s.Model {
	case 1:
		if r := -f(0); r >= 1 && r <= 9 {
			return nil, model.Reason(r)
		}
		x, y := f(0)+f(2), f(1)+f(3)
		out = le.AppendUint32(le.AppendUint32(nil, math.Float32bits(x)), math.Float32bits(y))
		for _, v := range []float32{x, y} {
			out = append(out, map[bool]byte{true: 1}[v > 100])
		}
	case 2:
		text := append([]byte("<"), in[4:]...)
		text = append(text, '>')
		out = append(le.AppendUint32(nil, uint32(len(text))), text...)
	case 3:
		for i := range 4 {
			out = le.AppendUint32(out, uint32(int32(in[i])-10))
		}
	case 4:
		return nil, model.NoBackend
	case 5:
		out = slices.Clone(in)
	}
	return out, model.ReasonNone
}

func client(t testing.TB, answer echo.Answer) (*frontend.Client, *echo.System) {
	t.Helper()
	s, err := echo.New(testModels, answer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, s
}

// rest returns a REST gateway over the test models.
func rest(t testing.TB, o Options) (*httptest.Server, *echo.System) {
	t.Helper()
	c, s := client(t, compute)
	g := New(c, o)
	server := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); server.Close(); g.grpc.Stop() })
	return server, s
}

func call(t testing.TB, method, url string, body io.Reader, header ...string) (int, http.Header, []byte) {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, text
}

const sumBody = `{"id":"q","inputs":[{"name":"b","shape":[1,2],"datatype":"FP32","data":[[10,20.5]]},{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`

func TestREST(t *testing.T) {
	server, _ := rest(t, Options{Version: "v9"})
	for _, c := range []struct {
		name, method, path, body string
		code                     int
		want                     string // a part of the answer
	}{
		{"live", "GET", "/v2/health/live", "", 200, `{"live":true}`},
		{"ready", "GET", "/v2/health/ready", "", 503, `{"ready":false}`}, // idle is not ready
		{"server", "GET", "/v2", "", 200, `"version":"v9"`},
		{"server with a slash", "GET", "/v2/", "", 200, `"binary_tensor_data"`},
		{"model", "GET", "/v2/models/sum", "", 200, `"inputs":[{"name":"a","datatype":"FP32","shape":[-1,2]},{"name":"b"`},
		{"model version", "GET", "/v2/models/sum/versions/1", "", 200, `"versions":["1"]`},
		{"no version", "GET", "/v2/models/sum/versions/2", "", 404, `Request for unknown model: 'sum' version '2' is not found; served: [1]`},
		{"no model", "GET", "/v2/models/nope", "", 404, `Request for unknown model: 'nope' is not found`},
		{"model ready", "GET", "/v2/models/sum/ready", "", 200, `{"name":"sum","ready":true}`},
		{"model not ready", "GET", "/v2/models/idle/ready", "", 503, `"ready":false`},
		{"model version ready", "GET", "/v2/models/sum/versions/1/ready", "", 200, `"ready":true`},
		{"config", "GET", "/v2/models/image/config", "", 200, `"dims":[3,2,2],"format":"FORMAT_NCHW"`},
		{"index", "POST", "/v2/repository/index", "{}", 200, `"state":"UNAVAILABLE"`},
		{"stats", "GET", "/v2/models/sum/stats", "", 200, `model_stats`},
		{"all stats", "GET", "/v2/models/stats", "", 200, `"name":"text"`},
		{"no path", "GET", "/v2/nothing", "", 404, `not part of the API`},
		{"infer", "POST", "/v2/models/sum/infer", sumBody, 200, `{"model_name":"sum","model_version":"1","id":"q","outputs":[{"name":"sum","datatype":"FP32","shape":[1,2],"data":[11,22.5]},{"name":"big","datatype":"BOOL","shape":[1,2],"data":[false,false]}]}`},
		{"infer version", "POST", "/v2/models/sum/versions/1/infer", sumBody, 200, `"id":"q"`},
		{"rows", "POST", "/v2/models/sum/infer", `{"inputs":[{"name":"a","shape":[3,2],"datatype":"FP32","data":[[1,2],[3,4],[5,600]]},{"name":"b","shape":[3,2],"datatype":"FP32","data":[0,0,0,0,0,0]}],"outputs":[{"name":"big"},{"name":"sum"}]}`, 200,
			`"outputs":[{"name":"big","datatype":"BOOL","shape":[3,2],"data":[false,false,false,false,false,true]},{"name":"sum","datatype":"FP32","shape":[3,2],"data":[1,2,3,4,5,600]}]`},
		{"no batch dimension", "POST", "/v2/models/text/infer", `{"inputs":[{"name":"in","datatype":"BYTES","shape":[1],"data":["h\u00e9"]}]}`, 200, `"shape":[1],"data":["\u003ché\u003e"]`},
		{"text rows", "POST", "/v2/models/text/infer", `{"inputs":[{"name":"in","datatype":"BYTES","shape":[2,1],"data":[["x"],[""]]}]}`, 200, `"shape":[2,1],"data":["\u003cx\u003e","\u003c\u003e"]`},
		{"classes", "POST", "/v2/models/image/infer", `{"inputs":[{"name":"pixels","datatype":"UINT8","shape":[1,3,2,2],"data":[1,9,3,7,0,0,0,0,0,0,0,0]}],"outputs":[{"name":"scores","parameters":{"classification":2}}]}`, 200, `"datatype":"BYTES","shape":[1,2],"data":["-1.000000:1:dog","-3.000000:3"]`},
		{"no backend", "POST", "/v2/models/idle/infer", `{"inputs":[{"name":"x","datatype":"INT64","shape":[1],"data":[1]}]}`, 503, "no_backend"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, text := call(t, c.method, server.URL+c.path, strings.NewReader(c.body))
			if code != c.code || !strings.Contains(strings.ReplaceAll(string(text), ": ", ":"), c.want) && !strings.Contains(string(text), c.want) {
				t.Errorf("%d %s, want %d with %s", code, text, c.code, c.want)
			}
		})
	}
}

// TestRESTRefuses checks that every bad input gets one error that names the field, its value and what is allowed.
func TestRESTRefuses(t *testing.T) {
	server, s := rest(t, Options{BodyMax: 4096})
	in := func(a string) string {
		return `{"inputs":[` + a + `,{"name":"b","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`
	}
	with := func(p string) string { return `{"parameters":{` + p + `},` + sumBody[1:] }
	for _, c := range []struct {
		name, body string
		code       int
		want       string
	}{
		{"empty", ``, 400, "the text ends"},
		{"not JSON", `hello`, 400, `byte 0`},
		{"tail", sumBody + `x`, 400, "after the end"},
		{"list", `[]`, 400, "'{' must be"},
		{"deep", `{"x":` + strings.Repeat("[", 100), 400, "nested deeper than 64"},
		{"null inputs", `{"id":null,"inputs":null}`, 400, "inputs: 0 tensors: must be 2"},
		{"no inputs", `{}`, 400, "inputs: 0 tensors: must be 2"},
		{"one input", `{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,2]}]}`, 400, "inputs: 1 tensors: must be 2"},
		{"name", in(`{"name":"z","shape":[1,2],"datatype":"FP32","data":[1,2]}`), 400, `input "z": no such input; the model has "a", "b"`},
		{"twice", in(`{"name":"b","shape":[1,2],"datatype":"FP32","data":[1,2]}`), 400, `input "b": given twice`},
		{"datatype", in(`{"name":"a","shape":[1,2],"datatype":"FP64","data":[1,2]}`), 400, `datatype "FP64": must be FP32`},
		{"no datatype", in(`{"name":"a","shape":[1,2],"data":[1,2]}`), 400, `input "a": datatype: is missing`},
		{"shape", in(`{"name":"a","shape":[1,3],"datatype":"FP32","data":[1,2,3]}`), 400, `shape [1 3]: must be [-1 2]`},
		{"negative shape", in(`{"name":"a","shape":[-1,2],"datatype":"FP32","data":[1,2]}`), 400, `dimensions must be 0 or more`},
		{"fractional shape", in(`{"name":"a","shape":[1.5,2],"datatype":"FP32","data":[1,2]}`), 400, `whole number`},
		{"huge shape", in(`{"name":"a","shape":[9223372036854775807,2],"datatype":"FP32","data":[1,2]}`), 400, `9223372036854775807 rows: must be within 1 and 1024`},
		{"no rows", in(`{"name":"a","shape":[0,2],"datatype":"FP32","data":[]}`), 400, `0 rows: must be within 1 and 1024`},
		{"rows differ", in(`{"name":"a","shape":[2,2],"datatype":"FP32","data":[1,2,3,4]}`), 400, `the other inputs have`},
		{"no data", in(`{"name":"a","shape":[1,2],"datatype":"FP32"}`), 400, `input "a": has no data`},
		{"short data", in(`{"name":"a","shape":[1,2],"datatype":"FP32","data":[1]}`), 400, `4 bytes of data: shape [1 2] of FP32 takes 8`},
		{"long data", in(`{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,2,3]}`), 400, `12 bytes of data`},
		{"bad number", in(`{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,Nan]}`), 400, `a number must be`},
		{"large number", in(`{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,1e60]}`), 400, `1e60 is not a value of FP32`},
		{"binary and data", in(`{"name":"a","shape":[1,2],"datatype":"FP32","data":[1,2],"parameters":{"binary_data_size":8}}`), 400, `give one`},
		{"binary missing", in(`{"name":"a","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}`), 400, `only 0 bytes of binary data are left`},
		{"negative timeout", with(`"timeout":-5`), 400, "parameter timeout: -5 µs: must be within 0 (none) and 3600000000"},
		{"negative timeout", with(`"timeout":-5`), 400, "parameter timeout: -5 µs"},
		{"absurd timeout", with(`"timeout":99999999999999`), 400, "must be within 0 (none) and 3600000000"},
		{"NaN timeout", with(`"timeout":NaN`), 400, "parameter timeout: must be a whole number"},
		{"fractional timeout", with(`"timeout":1.5`), 400, "parameter timeout: must be a whole number"},
		{"text timeout", with(`"timeout":"5"`), 400, "parameter timeout: must be a whole number"},
		{"priority", with(`"priority":-1`), 400, "parameter priority: -1: must be 0 or more"},
		{"sequence", with(`"sequence_id":4`), 400, `sequence 4: the model keeps no sequences`},
		{"sequence start", with(`"sequence_start":true`), 400, "the model keeps no sequences"},
		{"negative sequence", with(`"sequence_id":-4`), 400, "parameter sequence_id: -4: must be a whole number from 0 to 2^64-1, or a text"},
		{"numeric start", with(`"sequence_id":"s","sequence_start":1`), 400, "parameter sequence_start: 1: must be true or false"},
		{"output", sumBody[:len(sumBody)-1] + `,"outputs":[{"name":"nope"}]}`, 400, `output "nope": no such output; the model has "sum", "big"`},
		{"output twice", sumBody[:len(sumBody)-1] + `,"outputs":[{"name":"sum"},{"name":"sum"}]}`, 400, `requested twice`},
		{"classes", sumBody[:len(sumBody)-1] + `,"outputs":[{"name":"sum","parameters":{"classification":-1}}]}`, 400, `parameter classification: -1`},
		{"large", `{"x":"` + strings.Repeat("x", 5000) + `"}`, 413, "must be at most 4096"},
		{"dropped", strings.Replace(sumBody, "[1,2]}", "[-1,2]}", 1), 504, "dropped: deadline_cannot_be_met"},
		{"queue full", strings.Replace(sumBody, "[1,2]}", "[-2,2]}", 1), 429, "rejected: queue_full"},
		{"unloaded", strings.Replace(sumBody, "[1,2]}", "[-3,2]}", 1), 404, "rejected: unknown_model"},
		{"past", strings.Replace(sumBody, "[1,2]}", "[-4,2]}", 1), 504, "deadline_past"},
		{"lost", strings.Replace(sumBody, "[1,2]}", "[-7,2]}", 1), 503, "backend_lost"},
		{"failed", strings.Replace(sumBody, "[1,2]}", "[-8,2]}", 1), 500, "execution_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(c.body))
			var e struct{ Error string }
			if err := json.Unmarshal(text, &e); err != nil || code != c.code || !strings.Contains(e.Error, c.want) {
				t.Errorf("%d %s, want %d with %s", code, text, c.code, c.want)
			}
		})
	}
	if got := s.Submits(); got != 6 {
		t.Errorf("%d requests reached the scheduler, want 6", got)
	}
}

func TestRESTBinary(t *testing.T) {
	server, _ := rest(t, Options{})
	raw := func(v ...float32) (b []byte) {
		for _, f := range v {
			b = le.AppendUint32(b, math.Float32bits(f))
		}
		return b
	}
	head := `{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}},{"name":"b","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],` +
		`"outputs":[{"name":"sum","parameters":{"binary_data":true}},{"name":"big"}]}`
	body := slices.Concat([]byte(head), raw(1, 2), raw(3, 4))
	code, h, text := call(t, "POST", server.URL+"/v2/models/sum/infer", bytes.NewReader(body), headerLength, strconv.Itoa(len(head)))
	n, err := strconv.Atoi(h.Get(headerLength))
	if code != 200 || err != nil || h.Get("Content-Type") != "application/octet-stream" {
		t.Fatalf("%d %v %s", code, h, text)
	}
	if want := `"name":"sum","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}`; !strings.Contains(string(text[:n]), want) || !bytes.Equal(text[n:], raw(4, 6)) {
		t.Errorf("%s + %x", text[:n], text[n:])
	}
	// The request's parameter selects binary for all outputs; the body is compressed.
	head = `{"parameters":{"binary_data_output":true},` + head[1:strings.Index(head, `,"outputs"`)] + `}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(slices.Concat([]byte(head), raw(1, 2), raw(3, 400)))
	z.Close()
	_, h, text = call(t, "POST", server.URL+"/v2/models/sum/infer", &packed, headerLength, strconv.Itoa(len(head)), "Content-Encoding", "gzip")
	if n, err = strconv.Atoi(h.Get(headerLength)); err != nil || !bytes.Equal(text[n:], append(raw(4, 402), 0, 1)) {
		t.Errorf("%s", text)
	}
	for _, bad := range []string{"x", "-1", "99999"} {
		if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", bytes.NewReader(body), headerLength, bad); code != 400 || !strings.Contains(string(text), headerLength) {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", bytes.NewReader(body), "Content-Encoding", "br"); code != 415 {
		t.Errorf("br: %d %s", code, text)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader("not gzip"), "Content-Encoding", "gzip"); code != 400 || !strings.Contains(string(text), "body: Content-Encoding gzip: ") {
		t.Errorf("not gzip: %d %s", code, text)
	}
}

func TestRESTTimeoutAndDisconnect(t *testing.T) {
	server, s := rest(t, Options{})
	s.Hold()
	within := 300 * time.Millisecond
	var code int
	var text []byte
	for ; len(s.Waiting()) == 0 && within < time.Minute; within *= 4 { // a busy host may use it up before submission
		body := fmt.Sprintf(`{"parameters":{"timeout":%d,"priority":1},`, within.Microseconds()) + sumBody[1:]
		code, _, text = call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(body))
	}
	if code != 504 || !strings.Contains(string(text), "deadline_cannot_be_met") {
		t.Errorf("%d %s", code, text)
	}
	if m := s.Waiting(); len(m) != 1 || m[0].Priority != 255 || m[0].Budget > int64(within/4) {
		t.Errorf("submitted %+v", m)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody))
	ended := make(chan error)
	go func() {
		w, err := http.DefaultClient.Do(r)
		if err == nil {
			w.Body.Close()
		}
		ended <- err
	}()
	until(t, func() bool { return len(s.Waiting()) == 2 })
	cancel()
	<-ended
	until(t, func() bool { return len(s.Canceled()) == 2 })
}

func until(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited 20 s in vain")
		}
	}
}

func TestRESTSlowBody(t *testing.T) {
	c, _ := client(t, compute)
	g := New(c, Options{})
	defer g.grpc.Stop()
	server := httptest.NewUnstartedServer(g.rest.Handler)
	server.Config.ReadTimeout = 2 * time.Second // the header must arrive within it
	server.Start()
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /v2/models/sum/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
	answer, _ := io.ReadAll(conn)
	if !bytes.Contains(answer, []byte("408 Request Timeout")) || !bytes.Contains(answer, []byte("did not arrive in time")) {
		t.Errorf("%s", answer)
	}
}

// TestRESTIdleBodies: senders that declare bodies and send none do not keep others out.
func TestRESTIdleBodies(t *testing.T) {
	c, _ := client(t, compute)
	g := New(c, Options{})
	defer g.grpc.Stop()
	server := httptest.NewServer(g.rest.Handler)
	defer server.Close()
	const idle = 40
	for range idle {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "POST /v2/models/sum/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+strconv.FormatInt(g.o.BodyMax, 10)+"\r\n\r\n{")
	}
	until(t, func() bool { return g.memory.used.Load() >= idle })
	if used := g.memory.used.Load(); used > idle*scratchMax {
		t.Errorf("%d promised bodies count as %d bytes", idle, used)
	}
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody)); code != 200 {
		t.Errorf("%d %s", code, text)
	}
	g.memory.used.Add(g.memory.max) // as if they had sent it
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody)); code != 429 || !bytes.Contains(text, []byte("messages under way")) {
		t.Errorf("%d %s", code, text)
	}
	g.memory.used.Add(-g.memory.max)
	if code, _, text := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody)); code != 200 {
		t.Errorf("%d %s", code, text)
	}
}

func TestRESTMethods(t *testing.T) {
	server, _ := rest(t, Options{})
	for path, want := range map[string]string{"GET /v2/models/sum/infer": "POST", "DELETE /v2/models/sum": "GET", "POST /v2": "GET", "PUT /v2/nothing": ""} {
		method, url, _ := strings.Cut(path, " ")
		code, h, text := call(t, method, server.URL+url, nil)
		if want != "" && (code != 405 || h.Get("Allow") != want) || want == "" && code != 404 {
			t.Errorf("%s: %d %v %s", path, code, h, text)
		}
	}
}

func TestToken(t *testing.T) {
	server, _ := rest(t, Options{Token: "secret"})
	for header, want := range map[string]int{"": 401, "Bearer wrong": 401, "secret": 401, "Bearer secret": 200} {
		if code, _, text := call(t, "GET", server.URL+"/v2", nil, "Authorization", header); code != want {
			t.Errorf("%q: %d %s", header, code, text)
		}
	}
	if code, _, _ := call(t, "GET", server.URL+"/v2/health/live", nil); code != 200 {
		t.Errorf("live: %d", code)
	}
}

func TestMetrics(t *testing.T) {
	server, _ := rest(t, Options{})
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody))
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(strings.Replace(sumBody, "[1,2]}", "[-2,2]}", 1)))
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader("{}"))
	call(t, "POST", server.URL+"/v2/models/nope/infer", strings.NewReader("{}"))
	_, _, text := call(t, "GET", server.URL+"/metrics", nil)
	for _, want := range []string{
		`downbeat_inference_request_success_total{model="sum",version="1"} 1`,
		`downbeat_inference_good_total{model="sum",version="1"} 1`,
		`downbeat_inference_slo_total{model="sum",result="met",version="1"} 1`, `downbeat_inference_slo_total{model="sum",result="missed",version="1"} 1`,
		`downbeat_inference_request_failure_total{model="sum",reason="queue_full",version="1"} 1`,
		`downbeat_inference_bad_total{model="sum",reason="queue_full",version="1"} 1`,
		`downbeat_inference_request_failure_total{model="sum",reason="invalid_argument",version=""} 1`,
		`downbeat_inference_request_failure_total{model="",reason="unknown_model",version=""} 1`,
		`downbeat_inference_request_duration_seconds_count{model="sum",version="1"} 1`,
		`downbeat_inference_deadline_slack_seconds_bucket{model="sum",version="1",le="0"} 0`,
		`downbeat_inference_pending_requests 0`,
		`downbeat_scheduler_connected 1`,
	} {
		if !strings.Contains(string(text), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	_, _, text = call(t, "GET", server.URL+"/v2/models/sum/stats", nil)
	if got := strings.ReplaceAll(string(text), " ", ""); !strings.Contains(got, `"inference_count":1,`) {
		t.Errorf("%s", got)
	}
}

// TestMetricsOfForgottenModels: models that the scheduler has forgotten lose their metrics once another model is
// counted.
func TestMetricsOfForgottenModels(t *testing.T) {
	server, s := rest(t, Options{})
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody))
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(strings.Replace(sumBody, "[1,2]}", "[-2,2]}", 1)))
	s.Return([]model.Info{{ID: 1}})
	if code, _, _ := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody)); code != 404 {
		t.Errorf("a forgotten model is answered with %d", code)
	}
	call(t, "GET", server.URL+"/v2/models/text/stats", nil)
	_, _, text := call(t, "GET", server.URL+"/metrics", nil)
	if strings.Contains(string(text), `model="sum"`) || !strings.Contains(string(text), `model="text"`) {
		t.Errorf("%s", text)
	}
}
