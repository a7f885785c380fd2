//go:build linux

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/deploy"
	"downbeat.dev/frontend/gateway/oip"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

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
