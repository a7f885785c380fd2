package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCheckDrawsApplications: the tree's own application over its models, with a picture; one that does not fit fails by name.
func TestCheckDrawsApplications(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	c := applicationCheck{dirs: "../../models", draw: dir, rate: 48, hop: time.Millisecond}
	if err := c.run(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"traffic: 200ms, 48 frames/s", "hook crop", "vehicle-m", "vehicle_kinds FP32[6] (up to 16)",
		"take at least 0 GPUs", "no latency is stored of activity-m, detector-m, vehicle-m: run downbeat profile"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "traffic.svg")); err != nil || !strings.Contains(string(svg), "each of vehicles: 3, at most 16") {
		t.Errorf("picture: %v\n%s", err, svg)
	}

	if err := os.Mkdir(filepath.Join(dir, "lonely"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../models/traffic/application.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lonely", "application.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	c = applicationCheck{dirs: dir, rate: 1}
	if err := c.run(&out); err == nil || !strings.Contains(err.Error(), `stage "detect": model: no model "detector-m"`) {
		t.Errorf("error %v, want that the model is missing", err)
	}
	if err := (&applicationCheck{dirs: dir, rate: -1}).run(&out); err == nil || !strings.Contains(err.Error(), "-rate -1") {
		t.Errorf("error %v, want one about the rate", err)
	}
}

// TestCheckCompletesConfigurations: what serving reads from a model's file, checking reads from there, too. The file has
// early exits besides the whole, whose outputs are not the model's.
func TestCheckCompletesConfigurations(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "m", "1"), os.DirFS("../../models/vehicle-s/1")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m", "config.pbtxt"), []byte(`platform: "onnxruntime_onnx"`), 0o644); err != nil {
		t.Fatal(err)
	}
	const text = `latency_ms: 50
inputs: [ {name: in, datatype: UINT8, shape: [32, 48, 3]} ]
stages: [ {name: only, model: m, inputs: {image: in}, outputs: {%s: out}} ]
outputs: [ {name: out, of: out} ]
`
	if err := os.Mkdir(filepath.Join(dir, "once"), 0o755); err != nil {
		t.Fatal(err)
	}

	check := func(output string) error {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "once", "application.yaml"), fmt.Appendf(nil, text, output), 0o644); err != nil {
			t.Fatal(err)
		}
		c := applicationCheck{dirs: dir, rate: 1, hop: time.Millisecond}
		return c.run(io.Discard)
	}
	if err := check("scores"); err != nil {
		t.Error(err)
	}
	if err := check("scores.exit1"); err == nil || !strings.Contains(err.Error(), `model "m"'s outputs at most once: "scores"`) {
		t.Errorf("an exit's output: %v", err)
	}
}
