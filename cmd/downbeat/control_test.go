//go:build linux

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	downbeat "downbeat.dev"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/memcost"
)

// adding is a graph whose output "out" is its input "in", one float, plus a number.
func adding(t testing.TB, number float32) []byte {
	return graph(t, "adding", func(g *onnx.Builder) {
		in := g.Input("in", onnx.Float, onnx.Batched(1))
		g.Output("out", g.Node("Add", []string{in, g.Scalar(number)}), onnx.Float, onnx.Batched(1))
	})
}

// controlled changes a configuration to a mode of model control.
func controlled(mode, load string) func(*deploy.Config) {
	return func(c *deploy.Config) {
		c.Repository.ModelControl, c.Repository.LoadModels, c.Repository.PollEvery = mode, load, 100*time.Millisecond
	}
}

// controls calls what a repository that is served under control answers.
type controls struct{ *downbeat.System }

// serveControlled serves a repository as serveReal does.
func serveControlled(t testing.TB, dir string, change func(*deploy.Config)) controls {
	return controls{serveReal(t, dir, change)}
}

func (p controls) ask(t testing.TB, path, body string) (int, string) {
	return ask(t, p.System, path, body)
}

// one asks a model that takes one float for its answer to 1; a code other than 200 is an error that has the text.
func (p controls) one(t testing.TB, path string) (float64, error) {
	t.Helper()
	code, text := p.ask(t, "/v2/models/"+path+"/infer", `{"inputs":[{"name":"in","datatype":"FP32","shape":[1,1],"data":[1]}]}`)
	if code != http.StatusOK {
		return 0, fmt.Errorf("%d %s", code, text)
	}
	var r struct{ Outputs []struct{ Data []float64 } }
	if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Outputs) != 1 || len(r.Outputs[0].Data) != 1 {
		return 0, fmt.Errorf("%s: %w", text, err)
	}
	return r.Outputs[0].Data[0], nil
}

// expect checks the answer of a model to 1.
func (p controls) expect(t testing.TB, path string, want float64) {
	t.Helper()
	if got, err := p.one(t, path); err != nil || got != want {
		t.Errorf("%s: %v, %v; want %v", path, got, err, want)
	}
}

// control loads or unloads a model over REST and checks the code and what the answer says.
func (p controls) control(t testing.TB, call, body string, want int, says string) {
	t.Helper()
	if body == "" {
		body = "{}"
	}
	if code, text := p.ask(t, "/v2/repository/models/"+call, body); code != want || !strings.Contains(text, says) {
		t.Errorf("%s: %d %s, want %d %q", call, code, text, want, says)
	}
}

// index is the repository's index: states and reasons by model and version.
func (p controls) index(t testing.TB) map[string]string {
	t.Helper()
	_, text := p.ask(t, "/v2/repository/index", "{}")
	var list []struct{ Name, Version, State, Reason string }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err, text)
	}
	all := map[string]string{}
	for _, m := range list {
		all[m.Name+":"+m.Version] = strings.TrimSpace(m.State + " " + m.Reason)
	}
	return all
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// put writes a file of a repository.
func put(t testing.TB, dir, path string, content []byte) {
	t.Helper()
	to := filepath.Join(dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestConformanceLoad walks a model through its life: not loaded, loaded, a new version, a corrupt one, unloaded.
func TestConformanceLoad(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/config.pbtxt", []byte(slow)},
		file{"other/1/model.onnx", adding(t, 10)}, file{"other/config.pbtxt", []byte(slow)}, file{"bad/1/model.onnx", []byte("nonsense")})
	p := serveControlled(t, dir, func(c *deploy.Config) {
		controlled("explicit", "other")(c)
		c.Protocol.StrictReadiness = true
	})
	ready := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("readiness %d", want), func() bool { code, _ := p.ask(t, "/v2/health/ready", ""); return code == want })
	}

	ready(http.StatusOK)
	if got := p.index(t); got["m:"] != "UNAVAILABLE unloaded" || got["other:1"] != "READY" || got["bad:"] != "UNAVAILABLE unloaded" {
		t.Errorf("index at start: %v", got)
	}
	if _, err := p.one(t, "m"); err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "Request for unknown model: 'm'") {
		t.Errorf("not loaded: %v", err)
	}

	p.control(t, "m/load", "", http.StatusOK, "")
	p.expect(t, "m", 2)
	p.control(t, "m/load", "", http.StatusOK, "") // again
	p.expect(t, "m", 2)
	put(t, dir, "m/2/model.onnx", adding(t, 2))
	p.expect(t, "m", 2)
	p.control(t, "m/load", "", http.StatusOK, "")
	p.expect(t, "m", 3)
	if got := p.index(t); got["m:1"] != "UNAVAILABLE unloaded" || got["m:2"] != "READY" {
		t.Errorf("index after a version came: %v", got)
	}

	// The version that is served changes in place, and into nonsense.
	put(t, dir, "m/2/model.onnx", adding(t, 3))
	p.control(t, "m/load", "", http.StatusOK, "")
	p.expect(t, "m", 4)
	put(t, dir, "m/2/model.onnx", []byte("nonsense"))
	p.control(t, "m/load", "", http.StatusBadRequest, "failed to load 'm', ")
	p.expect(t, "m", 4)
	ready(http.StatusOK)

	p.control(t, "bad/load", "", http.StatusBadRequest, "failed to load 'bad', ")
	if got := p.index(t); !strings.HasPrefix(got["bad:"], "UNAVAILABLE ") || got["bad:"] == "UNAVAILABLE unloaded" {
		t.Errorf("index after a load that failed: %v", got)
	}
	ready(http.StatusServiceUnavailable)
	p.control(t, "bad/unload", "", http.StatusOK, "")
	ready(http.StatusOK)
	p.control(t, "nobody/load", "", http.StatusNotFound, `failed to load 'nobody', failed to poll from model repository: model \"nobody\": no such model in `)
	p.control(t, "..%2Fm/load", "", http.StatusNotFound, "failed to load '../m', failed to poll from model repository: no such model: name: ")
	if why, listed := p.index(t)["../m:"]; listed {
		t.Errorf("a name that no model can have is in the index: %s", why)
	}
	ready(http.StatusOK)
	p.control(t, "nobody/unload", "", http.StatusOK, "")

	p.control(t, "m/rollback", `{"parameters":{"version":"1"}}`, http.StatusNotFound, "failed to roll back 'm', ")
	p.control(t, "m/rollback", `{"parameters":{"version":"latest"}}`, http.StatusBadRequest, `parameter version: \"latest\": want the number of an earlier version`)
	p.control(t, "m/rollback", `{"parameters":{"to":"1"}}`, http.StatusBadRequest, "parameter to: want version")
	p.control(t, "m/unload", `{"parameters":{"unload_dependents":true}}`, http.StatusOK, "")
	if _, err := p.one(t, "m"); err == nil || !strings.Contains(err.Error(), "it is unloaded") {
		t.Errorf("a model that was unloaded: %v", err)
	}
	if got := p.index(t); got["m:2"] != "UNAVAILABLE unloaded" {
		t.Errorf("index after unload: %v", got)
	}
	p.expect(t, "other", 11)
}

// TestConformanceOverride loads a model with a configuration and with files that its repository does not have.
func TestConformanceOverride(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/2/model.onnx", adding(t, 2)}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", ""))
	quoted := func(v any) string { text, _ := json.Marshal(v); return string(text) }
	settings := map[string]any{"backend": "onnxruntime", "versionPolicy": map[string]any{"specific": map[string]any{"versions": []string{"1"}}},
		"parameters": map[string]any{"slo_ms": map[string]any{"string_value": "60000"}}}

	p.control(t, "m/load", `{"parameters":{"config":`+quoted(quoted(settings))+`}}`, http.StatusOK, "")
	p.expect(t, "m", 2)
	if got := p.index(t); got["m:2"] != "" || got["m:1"] != "READY" {
		t.Errorf("index: %v", got)
	}
	p.control(t, "m/load", "", http.StatusOK, "") // the repository's again
	p.expect(t, "m", 3)

	settings["versionPolicy"] = nil
	seven := base64.StdEncoding.EncodeToString(adding(t, 7))
	p.control(t, "m/load", `{"parameters":{"config":`+quoted(quoted(settings))+`,"file:5/model.onnx":"`+seven+`"}}`, http.StatusOK, "")
	p.expect(t, "m", 8)
	p.expect(t, "m/versions/5", 8)
	p.control(t, "fresh/load", `{"parameters":{"config":`+quoted(quoted(settings))+`,"file:1/model.onnx":"`+seven+`"}}`, http.StatusOK, "")
	p.expect(t, "fresh", 8)
	p.control(t, "fresh/unload", "", http.StatusOK, "")
	if got := p.index(t); got["fresh:1"] != "UNAVAILABLE unloaded" {
		t.Errorf("a model whose files are gone: %v", got)
	}

	for body, says := range map[string]string{
		`{"parameters":{"config":"{"}}`:                                     "parameter config: JSON",
		`{"parameters":{"config":"{\"max_batch\":4}"}}`:                     "max_batch",
		`{"parameters":{"config":5}}`:                                       "body",
		`{"parameters":{"file:1/model.onnx":"!"}}`:                          "want base64",
		`{"parameters":{"file:1/model.onnx":"` + seven + `"}}`:              "without its config",
		`{"parameters":{"config":"{}","file:../x":"` + seven + `"}}`:        "below the model's directory",
		`{"parameters":{"colour":1}}`:                                       "parameter colour",
		`{"parameters":{"config":"{}","file:1/model.onnx":"bm9uc2Vuc2U="}}`: "failed to load 'm'",
	} {
		p.control(t, "m/load", body, http.StatusBadRequest, says)
	}
	p.expect(t, "m", 8)

	conn, err := grpc.NewClient(p.Config().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := oip.NewGRPCInferenceServiceClient(conn)
	text := func(s string) *oip.ModelRepositoryParameter {
		return &oip.ModelRepositoryParameter{ParameterChoice: &oip.ModelRepositoryParameter_StringParam{StringParam: s}}
	}
	_, err = c.RepositoryModelLoad(t.Context(), &oip.RepositoryModelLoadRequest{ModelName: "m", Parameters: map[string]*oip.ModelRepositoryParameter{
		"config":            text(quoted(settings)),
		"file:1/model.onnx": {ParameterChoice: &oip.ModelRepositoryParameter_BytesParam{BytesParam: adding(t, 20)}}}})
	if err != nil {
		t.Fatal(err)
	}
	p.expect(t, "m", 21)
	if _, err = c.RepositoryModelLoad(t.Context(), &oip.RepositoryModelLoadRequest{ModelName: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("a model that is not there: %v", err)
	}
	if _, err = c.RepositoryModelUnload(t.Context(), &oip.RepositoryModelUnloadRequest{ModelName: "m"}); err != nil {
		t.Error(err)
	}
	if _, err := p.one(t, "m"); err == nil || !strings.Contains(err.Error(), "it is unloaded") {
		t.Errorf("a model that was unloaded: %v", err)
	}
}

// TestConformanceLoadsAtOnce: many loads and unloads of one model at once end, and the last word holds; requests for
// another one are answered all the while.
func TestConformanceLoadsAtOnce(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/config.pbtxt", []byte(slow)},
		file{"other/1/model.onnx", adding(t, 10)}, file{"other/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "*"))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { p.control(t, []string{"m/load", "m/unload"}[i%2], "", http.StatusOK, "") })
		p.expect(t, "other", 11)
	}
	all.Wait()
	p.control(t, "m/load", "", http.StatusOK, "")
	p.expect(t, "m", 2)
}

// TestConformanceControlIsRefused where the mode is another one.
func TestConformanceControlIsRefused(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/config.pbtxt", []byte(slow)})
	for _, mode := range []string{"none", "poll"} {
		p := serveControlled(t, dir, controlled(mode, ""))
		p.control(t, "m/load", "", http.StatusBadRequest, "explicit model load / unload is not allowed: model_control is ")
		p.control(t, "m/unload", "", http.StatusBadRequest, "not allowed")
		p.expect(t, "m", 2)
	}
}

// TestConformancePoll: models come, change and go with their files; one that is copied slowly is served when it is whole.
func TestConformancePoll(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", adding(t, 1)}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("poll", ""))
	p.expect(t, "m", 2)
	answers := func(path string, want float64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s answers %v", path, want), func() bool { got, err := p.one(t, path); return err == nil && got == want })
	}

	put(t, dir, "m/2/model.onnx", adding(t, 2))
	answers("m", 3)

	whole := adding(t, 5)
	put(t, dir, "m/3/model.onnx", whole[:len(whole)/2])
	for range 20 { // some polls long
		p.expect(t, "m", 3)
		time.Sleep(20 * time.Millisecond)
	}
	put(t, dir, "m/3/model.onnx", whole)
	answers("m", 6)

	put(t, dir, "late/1/model.onnx", adding(t, 30))
	put(t, dir, "late/config.pbtxt", []byte(slow))
	answers("late", 31)
	if err := os.RemoveAll(filepath.Join(dir, "late")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "late is unloaded", func() bool { _, err := p.one(t, "late"); return err != nil })
	if err := os.RemoveAll(filepath.Join(dir, "m", "3")); err != nil {
		t.Fatal(err)
	}
	answers("m", 3)
}

// TestControlAcrossProcesses loads and unloads a model on two backends through a scheduler, all processes of their own.
// What is loaded survives the scheduler's restart.
func TestControlAcrossProcesses(t *testing.T) {
	emulated := func(ms string) []byte {
		return []byte(`platform: "emulated" max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "alpha_ms" value { string_value: "` + ms + `" } } parameters { key: "beta_ms" value { string_value: "1" } }
` + slow)
	}
	dir, listen := writeRepository(t, file{"echo/config.pbtxt", emulated("1")}, file{"late/config.pbtxt", emulated("1")}), freeAddress(t)
	scheduler := startProcess(t, "", "scheduler", "-listen", listen, "-metrics", "")
	bothConnect := func() { // a command goes to the backends that are there
		t.Helper()
		waitFor(t, func() bool { return strings.Count(scheduler.log.String(), "backend connected") == 2 })
	}
	for _, name := range []string{"one", "two"} {
		startProcess(t, "", "backend", "-scheduler", listen, "-models", dir, "-emulate", "1", "-name", name, "-model-control", "explicit", "-load-models", "echo")
	}
	c := dialProcess(t, frontend.Options{Scheduler: listen})
	serves := func(name string) bool { m := c.Model(name, ""); return m != nil && m.Ready }
	waitFor(t, func() bool { return serves("echo") && c.Model("late", "") != nil })

	infer := func(name string) error {
		in, err := c.Buffer(4)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Free()
		r, err := c.Infer(t.Context(), name, in)
		r.Release()
		return err
	}
	bothConnect()
	if err := infer("late"); !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("a model that is not loaded: %v, want %v", err, frontend.ErrUnavailable)
	}
	if err := c.LoadModel(t.Context(), "late", frontend.Override{}); err != nil {
		t.Fatal(err)
	}
	if err := infer("late"); err != nil {
		t.Error(err)
	}
	if err := c.LoadModel(t.Context(), "late", frontend.Override{Config: string(emulated("2")), Files: map[string][]byte{"notes.txt": make([]byte, 1<<20)}}); err != nil {
		t.Error(err)
	}
	if err := infer("late"); err != nil {
		t.Error(err)
	}

	scheduler.end(syscall.SIGKILL)
	scheduler = startProcess(t, "", "scheduler", "-listen", listen, "-metrics", "")
	waitFor(t, func() bool { return c.Connected() && serves("echo") && serves("late") })
	bothConnect()
	if err := infer("late"); err != nil {
		t.Errorf("after the scheduler's restart: %v", err)
	}

	var refused *frontend.CommandError
	if err := c.LoadModel(t.Context(), "nobody", frontend.Override{}); !errors.As(err, &refused) || refused.Code != frontend.CommandUnknown {
		t.Errorf("a model that is not there: %v", err)
	}
	if err := c.UnloadModel(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	if err := infer("late"); !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("a model that was unloaded: %v, want %v", err, frontend.ErrUnavailable)
	}
	if err := infer("echo"); err != nil {
		t.Error(err)
	}
}

// TestLoadedModelsSurviveTheirBackend kills a backend with -9 and starts it anew: what clients had loaded is loaded, also with
// files of its own, and what they had unloaded is not.
func TestLoadedModelsSurviveTheirBackend(t *testing.T) {
	emulated := []byte(`platform: "emulated" max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "alpha_ms" value { string_value: "1" } } parameters { key: "beta_ms" value { string_value: "1" } }
` + slow)
	dir, listen, state := writeRepository(t, file{"echo/config.pbtxt", emulated}, file{"late/config.pbtxt", emulated}), freeAddress(t), t.TempDir()
	startProcess(t, "", "scheduler", "-listen", listen, "-metrics", "")
	start := func() *process {
		return startProcess(t, "", "backend", "-scheduler", listen, "-models", dir, "-emulate", "1", "-name", "a/b",
			"-model-control", "explicit", "-load-models", "echo", "-state-dir", state)
	}
	backend := start()
	c := dialProcess(t, frontend.Options{Scheduler: listen})
	serves := func(name string) bool { m := c.Model(name, ""); return m != nil && m.Ready }
	waitFor(t, func() bool { return serves("echo") && !serves("late") })

	override := frontend.Override{Config: string(emulated), Files: map[string][]byte{"notes.txt": []byte("kept")}}
	for _, err := range []error{c.LoadModel(t.Context(), "late", frontend.Override{}), c.LoadModel(t.Context(), "brought", override), c.UnloadModel(t.Context(), "echo")} {
		if err != nil {
			t.Fatal(err)
		}
	}

	backend.end(syscall.SIGKILL)
	waitFor(t, func() bool { return !serves("late") })
	backend = start()
	waitFor(t, func() bool { return serves("late") && serves("brought") })
	if serves("echo") {
		t.Error("a model that was unloaded is loaded after the restart")
	}

	// What is unloaded leaves nothing behind.
	if err := c.UnloadModel(t.Context(), "brought"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(state, "*", "downbeat-model-*")); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	backend.end(syscall.SIGKILL)
}

// TestConformanceUnloadReturnsMemory: what a model of 64 MiB takes of the process is given back by unload.
func TestConformanceUnloadReturnsMemory(t *testing.T) {
	const width = 4096
	large := graph(t, "large", func(g *onnx.Builder) {
		in := g.Input("in", onnx.Float, onnx.Batched(width))
		w := g.Const(onnx.FloatTensor("w", make([]float32, width*width), width, width))
		g.Output("out", g.Node("MatMul", []string{in, w}), onnx.Float, onnx.Batched(width))
	})
	dir := writeRepository(t, file{"large/1/model.onnx", large}, file{"large/config.pbtxt", []byte(slow)})
	large = nil
	p := serveControlled(t, dir, controlled("explicit", ""))
	memcost.CheckReturned(t, 48<<20,
		func() { p.control(t, "large/load", "", http.StatusOK, "") },
		func() { p.control(t, "large/unload", "", http.StatusOK, "") })
}
