//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	downbeat "downbeat.dev"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/deploy"
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
