package gpu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"downbeat.dev/cuda"
)

// On the emulated device the times are a model's, but every part of the measurement runs.
func TestRunMeasuresEveryBatch(t *testing.T) {
	d, err := Emulated()
	if err != nil {
		t.Fatal(err)
	}
	torch := func(_ context.Context, graph, precision string, batch int) (float64, bool, error) {
		return 100, batch == 2, nil
	}
	c := Config{Batches: []int{1, 2}, Rounds: 2, Rates: H200, Timeout: time.Minute, Torch: torch, Layers: true}
	var rows []Row
	if err := Run(context.Background(), d, c, "bert", BERT(BERTConfig{1, 32, 2, 64, 8, 50}, 1), func(r Row) { rows = append(rows, r) }); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || rows[0].Batch != 1 || rows[0].OursUS <= 0 || rows[0].FloorUS <= 0 || rows[0].CPUUS <= 0 || rows[0].TorchUS != nil || rows[1].TorchUS == nil {
		t.Errorf("rows %+v", rows)
	}
	if l := rows[0].LayerTimes; len(l) != rows[0].Layers || l[0].US <= 0 || l[0].Kernels == "" || l[0].FloorUS <= 0 {
		t.Errorf("layers %+v", l)
	}
	if *rows[1].Ratio != rows[1].OursUS/100 {
		t.Errorf("ratio %v", *rows[1].Ratio)
	}
	tp, err := Pipelined(context.Background(), d, c, BERT(BERTConfig{1, 32, 2, 64, 8, 50}, 1), 2)
	if err != nil {
		t.Fatal(err)
	}
	if !tp.Pinned || tp.PerSecond <= 0 || tp.CopyIn <= 0 || tp.Ratio <= 0 || tp.Compute <= 0 || tp.Alone <= 0 || tp.Share <= 0 {
		t.Errorf("throughput %+v", tp)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestCommandWithoutAGPUSaysSo(t *testing.T) {
	if _, err := cuda.Count(); err == nil {
		t.Skip("there is a GPU")
	}
	err := Command(context.Background(), Options{Batches: []int{1}, Rounds: 1}, &bytes.Buffer{})
	if !errors.Is(err, cuda.ErrNotSupported) || !strings.Contains(err.Error(), "-emulated") {
		t.Errorf("%v", err)
	}
}

func TestCommandWritesJSON(t *testing.T) {
	var out bytes.Buffer
	if err := Command(context.Background(), Options{Emulated: true, JSON: true, Graphs: []string{"none"}, Batches: []int{1}, Rounds: 1}, &out); err == nil || !strings.Contains(err.Error(), `graph "none": want resnet50`) {
		t.Errorf("an unknown graph: %v", err)
	}
	var r map[string]any
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r["device"] == nil {
		t.Errorf("%v: %s", err, out.String())
	}
}

// A python without torch is no error and no measurement; the script's status says so. One process answers all.
func TestTorchIsOptional(t *testing.T) {
	python := filepath.Join(t.TempDir(), "python")
	for script, want := range map[string]bool{"exit 3": false, "while read line; do echo 12.5; done": true} {
		if err := os.WriteFile(python, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		measure, stop := Torch(python)
		for range 2 {
			us, ok, err := measure(context.Background(), "resnet50", "fp16", 4)
			if err != nil || ok != want || ok && us != 12.5 {
				t.Errorf("%q: %v %v %v", script, us, ok, err)
			}
		}
		stop()
	}
	measure, stop := Torch("no-python-of-this-name")
	defer stop()
	if _, ok, err := measure(context.Background(), "resnet50", "fp32", 4); ok || err != nil {
		t.Errorf("without python: %v %v", ok, err)
	}
}
