package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/gateway/oip"
)

// applications returns two applications: framed takes rows and calls text twice, one call after the other; listed
// calls sum for as many pairs as its input says.
func applications(t testing.TB, c *frontend.Client) *app.Set {
	t.Helper()
	find := func(name, _ string) (graph.Signature, error) {
		for _, m := range testModels {
			if m.Name == name {
				return graph.Signature{Inputs: m.Inputs, Outputs: m.Outputs}, nil
			}
		}
		return graph.Signature{}, fmt.Errorf("no model %q", name)
	}
	text := func(name, from, to string) graph.Stage {
		return graph.Stage{Name: name, Model: "text", Takes: []graph.Flow{{Port: "in", Tensor: from}}, Gives: []graph.Flow{{Port: "out", Tensor: to}}}
	}
	texts, numbers := tensor("line", "BYTES", 1), tensor("count", "FP32", 2)
	framed := graph.Application{Name: "framed", Latency: graph.LatencyMax, BatchMax: 4, Text: `name: "framed" platform: "ensemble" max_batch_size: 4`,
		Inputs: []graph.Tensor{{Tensor: texts}}, Outputs: []graph.Output{{Name: "out", Of: "twice"}},
		Stages: []graph.Stage{text("second", "once", "twice"), text("first", "line", "once")}}
	listed := graph.Application{Name: "listed", Latency: graph.LatencyMax, Inputs: []graph.Tensor{{Tensor: numbers}},
		Outputs: []graph.Output{{Name: "sums", Of: "sums"}},
		Stages: []graph.Stage{
			{Name: "split", Hook: "split", Takes: []graph.Flow{{Port: "x", Tensor: "count"}}, Gives: []graph.Flow{{Port: "a", Tensor: "a"}},
				Declares: []graph.Tensor{{Tensor: tensor("a", "FP32", 2), Most: 3, Mean: 1}}},
			{Name: "add", Model: "sum", Each: "a", Takes: []graph.Flow{{Port: "a", Tensor: "a"}, {Port: "b", Tensor: "count"}}, Gives: []graph.Flow{{Port: "sum", Tensor: "sums"}}}}}
	split := func(*app.Step) (app.Hook, error) {
		return func(_ context.Context, call *app.Call) error {
			x := call.In[0][0]
			for n := byte(0); n < x[4]; n++ { // the second number's lowest byte
				call.Out[0] = append(call.Out[0], x)
			}
			return nil
		}, nil
	}

	var all []*app.App
	for _, a := range []graph.Application{framed, listed} {
		g, err := graph.Resolve(a, find)
		if err != nil {
			t.Fatal(err)
		}
		one, err := app.New(c, g, app.Options{Hooks: map[string]app.NewHook{"split": split}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(one.Close)
		all = append(all, one)
	}
	set, err := app.NewSet(all...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestApplicationsAreServedLikeModels: over REST, applications are described, listed, ready, and answered row by row
// under their own names.
func TestApplicationsAreServedLikeModels(t *testing.T) {
	c, _ := client(t, compute)
	g := New(c, Options{Applications: applications(t, c)})
	server := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); server.Close(); g.grpc.Stop() })

	number := func(first float64, count int) string { // the count is in the lowest byte of a tiny number
		return fmt.Sprintf(`{"inputs":[{"name":"count","shape":[2],"datatype":"FP32","data":[%g,%g]}]}`, first, float64(count)*1.401298464324817e-45)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v2/models/framed", "", 200, `"inputs":[{"name":"line","datatype":"BYTES","shape":[-1,1]}],"name":"framed"`},
		{"GET", "/v2/models/listed", "", 200, `"outputs":[{"name":"sums","datatype":"FP32","shape":[3,2]},{"name":"sums_count","datatype":"INT32","shape":[1]}]`},
		{"GET", "/v2/models/framed/ready", "", 200, `"ready":true`},
		{"GET", "/v2/models/framed/versions/2", "", 404, "not found"},
		{"GET", "/v2/models/framed/config", "", 200, `"platform":"ensemble"`},
		{"POST", "/v2/repository/index", "{}", 200, `"name":"listed"`},
		{"POST", "/v2/models/framed/infer", `{"inputs":[{"name":"line","shape":[2,1],"datatype":"BYTES","data":["a","bc"]}]}`, 200, `"data":["<<a>>","<<bc>>"]`},
		{"POST", "/v2/models/listed/infer", number(5, 2), 200, `"data":[10,6e-45,10,6e-45,0,0]},{"name":"sums_count","datatype":"INT32","shape":[1],"data":[2]`},
		{"POST", "/v2/models/listed/infer", number(5, 0), 200, `"data":[0,0,0,0,0,0]},{"name":"sums_count","datatype":"INT32","shape":[1],"data":[0]`},
		{"POST", "/v2/models/listed/infer", number(5, 4), 500, `stage \"split\": hook failed: output \"a\": 4 elements: want at most 3`},
		{"POST", "/v2/models/listed/infer", number(-1, 1), 504, `model \"listed\": dropped: deadline_cannot_be_met`},
		{"POST", "/v2/models/listed/infer", `{"inputs":[{"name":"count","shape":[3],"datatype":"FP32","data":[1,2,3]}]}`, 400, `shape [3]: must be [2]`},
		{"GET", "/v2/models/framed/stats", "", 200, `"name":"framed"`},
		{"GET", observe.SessionsPath, "", 200, `"steps":["first","second"],"frames":2,"failed":0,"sessions":[],"latest":[{"session":0,`},
	} {
		code, _, text := call(t, c.method, server.URL+c.path, strings.NewReader(c.body))
		plain := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(text))
		if code != c.code || !strings.Contains(plain, c.want) {
			t.Errorf("%s %s %s: %d %s, want %d and %s", c.method, c.path, c.body, code, text, c.code, c.want)
		}
	}
}

func TestApplicationsOverGRPC(t *testing.T) {
	conn, _ := rpcWith(t, func(c *frontend.Client) Options { return Options{Applications: applications(t, c)} })
	c := oip.NewGRPCInferenceServiceClient(conn)
	ctx := context.Background()
	if r, err := c.ModelReady(ctx, &oip.ModelReadyRequest{Name: "framed"}); err != nil || !r.Ready {
		t.Errorf("ready: %v, %v", r, err)
	}

	line := model.AppendText(model.AppendText(model.AppendText(nil, "x"), "y"), "z")
	r, err := c.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "framed", RawInputContents: [][]byte{line},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "line", Datatype: "BYTES", Shape: []int64{3, 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	if want := model.AppendText(model.AppendText(model.AppendText(nil, "<<x>>"), "<<y>>"), "<<z>>"); string(r.RawOutputContents[0]) != string(want) {
		t.Errorf("%q, want %q", r.RawOutputContents[0], want)
	}

	_, err = c.ModelInfer(ctx, &oip.ModelInferRequest{ModelName: "listed", RawInputContents: [][]byte{append(floats(-2), 1, 0, 0, 0)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "count", Datatype: "FP32", Shape: []int64{2}}}})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `stage "add"`) {
		t.Errorf("error %v, want that the queue of a stage is full", err)
	}
}
