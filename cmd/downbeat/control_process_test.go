//go:build linux

package main

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/memcost"
)

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
