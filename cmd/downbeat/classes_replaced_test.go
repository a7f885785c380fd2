//go:build linux

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"downbeat.dev/backend/onnx"
)

// TestClassesFollowTheirModel: a reload of the same files keeps the shape classes, one of other files loads those that these run, an unload ends all.
func TestClassesFollowTheirModel(t *testing.T) {
	dir := writeRepository(t, file{"m/1/model.onnx", identity(t, onnx.Float, []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}})}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "m"))
	infer := func(n int, want string) {
		t.Helper()
		if _, text := p.ask(t, "/v2/models/m/infer", row(n)); !strings.Contains(text, want) {
			t.Errorf("a row of %d: %s, want %s", n, text, want)
		}
	}
	classes := func() (all []string) {
		for _, m := range p.Backend().Hello().Models {
			if slices.Contains(m.Loaded, true) {
				all = append(all, m.Info.Version)
			}
		}
		return all
	}

	infer(2, `"data":[1,2]`)
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@2"}) {
		t.Errorf("after a reload of the same files: %q", got)
	}

	put(t, dir, "m/1/model.onnx", graph(t, "other", func(g *onnx.Builder) {
		dims := []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}}
		in := g.Input("in", onnx.Float, dims)
		g.Output("out", g.Node("Add", []string{in, in}), onnx.Float, dims)
	}))
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@2"}) {
		t.Errorf("after a load of other files: %q", got)
	}
	infer(2, `"data":[2,4]`)

	// Rows of three numbers are all that these files take.
	put(t, dir, "m/1/model.onnx", graph(t, "three", func(g *onnx.Builder) {
		dims := []onnx.Dim{{Name: "batch", Size: -1}, {Name: "n", Size: -1}}
		in := g.Input("in", onnx.Float, dims)
		g.Const(onnx.FloatTensor("by", []float32{1, 2, 3}, 3))
		g.Output("out", g.Node("Add", []string{in, "by"}), onnx.Float, dims)
	}))
	infer(3, `"data":[2,4,6]`)
	p.control(t, "m/load", "", http.StatusOK, "")
	if got := classes(); !slices.Equal(got, []string{"1", "1@3"}) {
		t.Errorf("after a load of files that run one class alone: %q", got)
	}
	infer(3, `"data":[2,4,6]`)
	infer(2, "does not run on it")

	p.control(t, "m/unload", "", http.StatusOK, "")
	if got := classes(); len(got) != 0 {
		t.Errorf("after the unload: %q", got)
	}
	infer(3, "unknown model")
	p.control(t, "m/load", "", http.StatusOK, "")
	infer(3, `"data":[2,4,6]`)
}

// TestReplacedModelsAreServedOn: while a model's files, and then its version, are replaced, requests that name no version go on being
// answered, also those of a shape class.
func TestReplacedModelsAreServedOn(t *testing.T) {
	t.Run("a shape class", func(t *testing.T) { replaceUnderLoad(t, onnx.Dim{Name: "n", Size: -1}) })
	t.Run("fixed dims", func(t *testing.T) { replaceUnderLoad(t, onnx.Dim{Size: 2}) })
}

// replaceUnderLoad asks a model for rows of two numbers while its files are replaced five times.
func replaceUnderLoad(t *testing.T, columns onnx.Dim) {
	dims := []onnx.Dim{{Name: "batch", Size: -1}, columns}
	add := func(by float32) []byte {
		return graph(t, "add", func(g *onnx.Builder) {
			in := g.Input("in", onnx.Float, dims)
			g.Const(onnx.FloatTensor("by", []float32{by}, 1))
			g.Output("out", g.Node("Add", []string{in, "by"}), onnx.Float, dims)
		})
	}
	dir := writeRepository(t, file{"m/1/model.onnx", add(0)}, file{"m/config.pbtxt", []byte(slow)})
	p := serveControlled(t, dir, controlled("explicit", "m"))

	// Callers ask all the time, and tell how many answers they have had.
	stop, answered := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for {
				if code, text := ask(t, p.System, "/v2/models/m/infer", row(2)); code != http.StatusOK {
					t.Errorf("%d %s", code, text)
					return
				}
				select {
				case <-stop:
					return
				case answered <- struct{}{}:
				default:
				}
			}
		})
	}

	ended := make(chan struct{}) // callers end early where a request failed
	go func() { wait.Wait(); close(ended) }()
	for i, at := range []string{"1", "1", "2", "2", "3"} {
		select {
		case <-answered:
		case <-ended:
		}
		put(t, dir, "m/"+at+"/model.onnx", add(float32(i+1)))
		p.control(t, "m/load", "", http.StatusOK, "")
		if _, text := p.ask(t, "/v2/models/m/infer", row(2)); !strings.Contains(text, fmt.Sprintf(`"data":[%d,%d]`, i+2, i+3)) {
			t.Errorf("load %d: %s", i+1, text)
		}
	}
	close(stop)
	<-ended
}
