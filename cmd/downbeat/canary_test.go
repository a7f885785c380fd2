//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend/gateway"
	"downbeat.dev/frontend/gateway/oip"
)

// canaryOf asks for a model's canary.
func (p controls) canaryOf(t testing.TB) (s gateway.CanaryStatus) {
	t.Helper()
	var all struct{ Canaries []gateway.CanaryStatus }
	_, text := p.ask(t, gateway.CanaryPath, "")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all.Canaries) > 1 {
		t.Fatalf("%s: %v", text, err)
	}
	if len(all.Canaries) == 1 {
		s = all.Canaries[0]
	}
	return s
}

// setCanary makes one call about canaries.
func (p controls) setCanary(t testing.TB, path, body string, want int, says string) {
	t.Helper()
	if body == "" {
		body = "{}"
	}
	if code, text := p.ask(t, gateway.CanaryPath+path, body); code != want || !strings.Contains(text, says) {
		t.Errorf("%s %s: %d %s, want %d %q", path, body, code, text, want, says)
	}
}

// shareOf asks a model n times over REST and returns how many answers there were of each value.
func (p controls) shareOf(t testing.TB, n int) map[float64]int {
	t.Helper()
	got := map[float64]int{}
	for range n {
		v, err := p.one(t, "m")
		if err != nil {
			t.Fatal(err)
		}
		got[v]++
	}
	return got
}

// threeVersions serves three versions of a model that adds 1, 2 and 1 to its input; all are loaded.
func threeVersions(t testing.TB, change func(*deploy.Config)) controls {
	return serveControlled(t, writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/2/model.onnx", adding(t, 2)}, file{"m/3/model.onnx", adding(t, 1)},
		file{"m/4/model.onnx", graph(t, "broken", func(g *onnx.Builder) {
			in := g.Input("in", onnx.Float, onnx.Batched(1))
			g.Output("out", g.Node("Div", []string{in, g.Scalar(0)}), onnx.Float, onnx.Batched(1))
		})},
		file{"m/config.pbtxt", []byte(slow + "version_policy { all { } }")},
		file{"pair/1/model.onnx", identity(t, onnx.Float, onnx.Batched(1))}, file{"pair/config.pbtxt", []byte(slow)}), change)
}

// TestACanaryTakesItsShare: of the requests that name no version, over REST and gRPC; promotion and rollback change who answers.
func TestACanaryTakesItsShare(t *testing.T) {
	p := threeVersions(t, nil)
	p.setCanary(t, "", `{"model":"m","base":"1","version":"2","share":0.25}`, http.StatusOK, `"share":0.25`)
	if got := p.shareOf(t, 40); got[2] != 30 || got[3] != 10 {
		t.Errorf("a quarter of 40: %v", got)
	}
	p.expect(t, "m/versions/2", 3) // who names a version gets it
	if s := p.canaryOf(t); s.BaseEnds.Good != 30 || s.VersionEnds.Good != 10 || s.BaseEnds.Bad+s.VersionEnds.Bad != 0 || s.VersionEnds.Seconds <= 0 {
		t.Errorf("counts %+v", s)
	}

	conn, err := grpc.NewClient(p.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	of := map[string]int{}
	for range 8 {
		r, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), &oip.ModelInferRequest{ModelName: "m", Inputs: []*oip.ModelInferRequest_InferInputTensor{
			{Name: "in", Datatype: "FP32", Shape: []int64{1, 1}, Contents: &oip.InferTensorContents{Fp32Contents: []float32{1}}}}})
		if err != nil {
			t.Fatal(err)
		}
		of[r.ModelVersion]++
	}
	if of["1"] != 6 || of["2"] != 2 {
		t.Errorf("over gRPC: %v", of)
	}

	p.setCanary(t, "/m/promote", "", http.StatusOK, `"base":"2"`)
	if got := p.shareOf(t, 10); got[3] != 10 {
		t.Errorf("promoted: %v", got)
	}
	p.setCanary(t, "/m/rollback", "", http.StatusBadRequest, "no version is being tried")
	p.setCanary(t, "", `{"model":"m","version":"1","base":"2","share":1}`, http.StatusOK, "")
	if got := p.shareOf(t, 10); got[2] != 10 {
		t.Errorf("all to version 1: %v", got)
	}
	p.setCanary(t, "/m/rollback", "", http.StatusOK, `"base":"2"`)
	if got := p.shareOf(t, 10); got[3] != 10 {
		t.Errorf("rolled back: %v", got)
	}
	p.setCanary(t, "/m/end", "", http.StatusOK, `{"canaries":[]}`)
	if _, text := p.ask(t, "/v2/models/m/infer", row(1)); !strings.Contains(text, `"model_version":"4"`) {
		t.Errorf("ended, the newest answers: %s", text)
	}
	p.setCanary(t, "/m/end", "", http.StatusNotFound, "has none")
}

// TestCopiesAreCompared: the version that is tried gets copies of what the base answers; nobody is answered by it.
func TestCopiesAreCompared(t *testing.T) {
	p := threeVersions(t, nil)
	for _, c := range []struct {
		version, rule   string
		same, different uint64
		most            float64
	}{
		{"3", `"shadow":1`, 20, 0, 0},
		{"2", `"shadow":0.5`, 0, 10, 1.0 / 3},
		{"2", `"shadow":1,"tolerance":0.5`, 20, 0, 1.0 / 3},
		{"4", `"shadow":1`, 0, 20, 1}, // an infinity
	} {
		p.setCanary(t, "", `{"model":"m","base":"1","version":"`+c.version+`",`+c.rule+`}`, http.StatusOK, "")
		if got := p.shareOf(t, 20); got[2] != 20 {
			t.Errorf("%s: clients got %v", c.version, got)
		}
		eventually(t, fmt.Sprintf("copies for version %s: %+v", c.version, c), func() bool {
			n := p.canaryOf(t).Copies
			return n.Same == c.same && n.Different == c.different && n.Failed+n.Skipped == 0 && n.Difference > c.most-0.001 && n.Difference < c.most+0.001
		})
		p.setCanary(t, "/m/end", "", http.StatusOK, "")
	}
}

// TestACanaryWaitsForItsVersion: a version that is not loaded, or unloaded again, takes nothing; a base that goes leaves
// requests to the newest.
func TestACanaryWaitsForItsVersion(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "m"))
	p.setCanary(t, "", `{"model":"m","version":"2","share":0.5}`, http.StatusOK, `"base":"1"`)
	if got := p.shareOf(t, 4); got[2] != 4 {
		t.Errorf("before the version is there: %v", got)
	}
	put(t, dir, "m/2/model.onnx", adding(t, 2))
	put(t, dir, "m/config.pbtxt", []byte(slow+"version_policy { all { } }"))
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := p.shareOf(t, 10); got[2] != 5 || got[3] != 5 {
		t.Errorf("once it is: %v", got)
	}
	put(t, dir, "m/config.pbtxt", []byte(slow+"version_policy { specific { versions: 2 } }"))
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := p.shareOf(t, 4); got[3] != 4 {
		t.Errorf("the base is unloaded: %v", got)
	}
}

// TestCanariesRefuse what makes no sense, and say why; their metrics stand in /metrics.
func TestCanariesRefuse(t *testing.T) {
	p := threeVersions(t, nil)
	for body, want := range map[string]string{
		`{"model":"none","version":"2"}`:                        `model \"none\": not served here`,
		`{"model":"m","base":"1"}`:                              "must be the number of the version to try",
		`{"model":"m","version":"1@7"}`:                         "must be the number of the version to try",
		`{"model":"m","version":"4"}`:                           "must differ from the base",
		`{"model":"m","base":"9","version":"2"}`:                `version \"9\" of \"m\" is not served; served: [1 2 3 4]`,
		`{"model":"m","base":"1","version":"2","share":1.5}`:    "share: 1.5: must be from 0 to 1",
		`{"model":"m","base":"1","version":"2","shadow":-1}`:    "shadow: -1: must be from 0 to 1",
		`{"model":"m","base":"1","version":"2","tolerance":-1}`: "tolerance: -1: must be 0 or more",
		`{"model":"m","base":"1","version":"2","shares":1}`:     `unknown field \"shares\"`,
		`{"model":"m","base":"1","version":"2"} x`:              "something follows it",
		`{`: "want one object",
		`{"model":"m","version":"` + strings.Repeat("1", 5000) + `"}`: "request body too large",
	} {
		if code, text := p.ask(t, gateway.CanaryPath, body); code < 400 || code >= 500 || !strings.Contains(text, want) {
			t.Errorf("%.80s: %d %s, want %s", body, code, text, want)
		}
	}
	p.setCanary(t, "", `{"model":"m","base":"1","version":"2","share":0.5,"shadow":1}`, http.StatusOK, "")
	p.shareOf(t, 4)
	_, text := p.ask(t, "/metrics", "")
	for _, want := range []string{`downbeat_canary_share{model="m",version="2"} 0.5`, `downbeat_canary_requests_total{model="m",result="good",version="1"} 2`, `downbeat_canary_copies_total{model="m",result="different",version="2"}`} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// TestCanaryCommands: each word makes its call at every gateway and prints what holds then.
func TestCanaryCommands(t *testing.T) {
	p := threeVersions(t, nil)
	at := "http://" + p.Config().HTTP
	run := func(args ...string) error {
		return silently(t, func() error { return canaryCommand().run(t.Context(), append(args, "-url", at)) })
	}
	if err := run("start", "-model", "m", "-base", "1", "-version", "2", "-share", "0.5", "-shadow", "1"); err != nil {
		t.Fatal(err)
	}
	if s := p.canaryOf(t); s.Share != 0.5 || s.Shadow != 1 || s.Base != "1" || s.Version != "2" {
		t.Errorf("%+v", s)
	}
	for _, word := range []string{"show", "promote", "end"} {
		args := []string{word, "-model", "m"}
		if word == "show" {
			args = args[:1]
		}
		if err := run(args...); err != nil {
			t.Errorf("%s: %v", word, err)
		}
	}
	if s := p.canaryOf(t); s.Model != "" {
		t.Errorf("ended, and there is %+v", s)
	}
	if err := run("promote", "-model", "m"); err == nil || !strings.Contains(err.Error(), "has none") {
		t.Errorf("promote without a canary: %v", err)
	}
	if err := run("start", "-model", "m"); err == nil || !strings.Contains(err.Error(), "want -model and -version") {
		t.Errorf("start without a version: %v", err)
	}

	var out strings.Builder
	if err := printCanaries(&out, []gateway.CanaryStatus{{Canary: gateway.Canary{Model: "m", Base: "1", Version: "2", Share: 0.25, Shadow: 1},
		VersionEnds: gateway.CanaryEnds{Good: 3, Bad: 1, Seconds: 0.02}, Copies: gateway.CopyEnds{Same: 5, Different: 1, Difference: 0.5}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0.75", "0.25", "5.00", "  SHADOW SHARE  SAME", "MOST DIFFERENT"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
