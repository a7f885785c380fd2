package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/oip"
)

const variantConfig = `
platform: "emulated"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
parameters { key: "alpha_ms" value { string_value: "0.1" } }
parameters { key: "beta_ms" value { string_value: "1" } }
parameters { key: "slo_ms" value { string_value: "20000" } }
parameters { key: "family" value { string_value: "sums" } }
parameters { key: "accuracy" value { string_value: "ACCURACY" } }
`

// serveFamily returns a gateway over a real scheduler and backend with a family of two variants.
func serveFamily(t *testing.T) *Gateway {
	t.Helper()
	models := map[string]string{"small": strings.ReplaceAll(variantConfig, "ACCURACY", "0.8"), "large": strings.ReplaceAll(variantConfig, "ACCURACY", "0.9")}
	s, err := stage.Open(context.Background(), models, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	until(t, func() bool { m := s.Client.Model("sums", ""); return m != nil && len(m.Variants) == 2 })
	return New(s.Client, Options{Process: watched(t, s)})
}

// TestExplainOverREST: the gateway returns the scheduler's explanation of a family.
func TestExplainOverREST(t *testing.T) {
	g := serveFamily(t)
	s := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); s.Close(); g.grpc.Stop() })
	body := `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`
	if code, _, text := call(t, "POST", s.URL+"/v2/models/sums/infer", strings.NewReader(body)); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}

	// The client has its answer before the backend's report of the batch reaches the scheduler, which counts it.
	var x engine.Explanation
	var text []byte
	until(t, func() bool {
		var code int
		code, _, text = call(t, "GET", s.URL+observe.ExplainPath, nil)
		x = engine.Explanation{}
		if err := json.Unmarshal(text, &x); err != nil || code != http.StatusOK || len(x.Families) != 3 {
			t.Fatalf("%d %s: %v", code, text, err)
		}
		return x.Families[0].Minute.Answers > 0
	})
	if f := &x.Families[0]; f.Family != "sums" || f.Minute.Answers != 1 || f.Minute.Accuracy != 0.9 || f.Next == nil || f.Next.Model != "large" || len(f.Variants) != 2 {
		t.Errorf("%s", text)
	}
}

// TestFamilyOverREST: a family's answer names the variant, its version and its accuracy; a floor that no variant
// reaches is refused with the best available accuracy.
func TestFamilyOverREST(t *testing.T) {
	g := serveFamily(t)
	s := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); s.Close(); g.grpc.Stop() })
	ask := func(model, parameters string) (int, string) {
		body := `{"parameters":` + parameters + `,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`
		code, _, answer := call(t, "POST", s.URL+"/v2/models/"+model+"/infer", strings.NewReader(body))
		return code, string(answer)
	}

	code, answer := ask("sums", `{"accuracy_floor":0.85}`)
	var got struct {
		ModelName  string `json:"model_name"`
		Parameters struct {
			Variant  string
			Version  string `json:"variant_version"`
			Accuracy float64
		}
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, answer, err)
	}
	if got.ModelName != "sums" || got.Parameters.Variant != "large" || got.Parameters.Version != "1" || got.Parameters.Accuracy != 0.9 {
		t.Errorf("%s", answer)
	}
	if code, plain := ask("small", `{}`); code != http.StatusOK || strings.Contains(plain, "variant") {
		t.Errorf("a model that was asked for by itself: %d %s", code, plain)
	}
	if _, _, text := call(t, "GET", s.URL+"/v2/models/sums", nil); !strings.Contains(string(text), `"versions":[]`) {
		t.Errorf("a family has no version of its own: %s", text)
	}

	for parameters, want := range map[string]string{`{"accuracy_floor":0.95}`: "the best that is served has 0.9", `{"accuracy_floor":7}`: "from 0 to 1", `{"accuracy_floor":"x"}`: "number"} {
		if code, answer := ask("sums", parameters); code < 400 || code > 499 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want %q", parameters, code, answer, want)
		}
	}
}

// TestFamilyOverGRPC: the same over gRPC.
func TestFamilyOverGRPC(t *testing.T) {
	conn := connectTo(t, serveFamily(t))
	c := oip.NewGRPCInferenceServiceClient(conn)
	r := &oip.ModelInferRequest{ModelName: "sums", RawInputContents: [][]byte{floats(1, 2)},
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "FP32", Shape: []int64{1, 2}}}}
	floor := func(f float64) {
		r.Parameters = map[string]*oip.InferParameter{"accuracy_floor": {ParameterChoice: &oip.InferParameter_DoubleParam{DoubleParam: f}}}
	}

	floor(0.85)
	got, err := c.ModelInfer(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p := got.Parameters; p["variant"].GetStringParam() != "large" || p["variant_version"].GetStringParam() != "1" || p["accuracy"].GetDoubleParam() != 0.9 {
		t.Errorf("%v", p)
	}
	floor(0.95)
	if _, err := c.ModelInfer(context.Background(), r); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a floor that nobody reaches: %v", err)
	}
}
