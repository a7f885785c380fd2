//go:build cgo

package ort

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// structure returns the models of a file of y = 8x with exits that answer y = 2x and y = 4x.
func structure(t *testing.T) (whole *device.Model, exits []*device.Model) {
	t.Helper()
	tensor := func(name string) model.Tensor {
		return model.Tensor{Name: name, Datatype: model.FP32, Shape: []int64{4}}
	}
	g := onnx.NewBuilder("structure")
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	var after []string
	for range 3 {
		x = g.Node("Mul", []string{x, g.Scalar(2)})
		after = append(after, x)
	}
	g.Output("y", x, onnx.Float, onnx.Batched(4))
	for k := range 2 {
		g.Output("y"+onnx.ExitSuffix(k+1), after[k], onnx.Float, onnx.Batched(4))
	}

	m := writeModel(t, "structure", 3, g, []model.Tensor{tensor("x")}, []model.Tensor{tensor("y")})
	for k := range 2 {
		exit := *m
		exit.Name, exit.ExitStage = m.Name+onnx.ExitSuffix(k+1), k+1
		exits = append(exits, layout(t, &exit))
	}
	return layout(t, m), exits
}

// TestExitsRunTheBeginningOfAFile: a model and its exits run from one file, each only the nodes that lead to its own
// output.
func TestExitsRunTheBeginningOfAFile(t *testing.T) {
	e := openRuntime(t).Executor()
	defer e.Close()
	whole, exits := structure(t)
	all := append([]*device.Model{whole}, exits...)
	slots := devicetest.Slots(t, 1, device.SlotBytes(all))
	if err := e.AddSlot(slots[0]); err != nil {
		t.Fatal(err)
	}

	for k, want := range []float32{8, 2, 4} {
		m := all[k]
		f, err := e.Load(m)
		if err != nil {
			t.Fatal(err)
		}
		if f.Shared != 0 || f.Static <= 0 {
			t.Errorf("%s: footprint %+v: a session of its own shares nothing", m.Name, f)
		}
		payload := make([]byte, m.InBytes)
		putFloat(payload, 5)
		devicetest.SetInput(m, slots[0], 0, payload)
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
			t.Fatal(err)
		}
		if got := float(slots[0].OutputRow(m, 0, 0)); got != 5*want {
			t.Errorf("%s: %v, want %v", m.Name, got, 5*want)
		}

		part, err := onnx.ReadPart(m.Source)
		if err != nil || part.Whole {
			t.Fatal(part.Whole, err)
		}
		if multiplications := len(part.Graph.Nodes) - 1; multiplications != []int{3, 1, 2}[k] {
			t.Errorf("%s: %d nodes before the output", m.Name, multiplications)
		}
	}
}

func TestAnExitThatTheFileHasNotIsRefused(t *testing.T) {
	e := openRuntime(t).Executor()
	defer e.Close()
	_, exits := structure(t)
	exits[1].Source.ExitStage = 3
	if _, err := e.Load(exits[1]); err == nil || !strings.Contains(err.Error(), `exit_stage: 3: `) || !strings.Contains(err.Error(), `no output whose name ends in ".exit3"; it has y, y.exit1, y.exit2`) {
		t.Errorf("exit 3 of 2: %v", err)
	}
}

// TestExitsInTheTree: the exits of the committed models answer a street's crop like their parts of the file.
func TestExitsInTheTree(t *testing.T) {
	e := openRuntime(t).Executor()
	defer e.Close()
	r, err := repo.Open(filepath.Join("..", "..", "models"))
	if err != nil {
		t.Fatal(errors.Join(err))
	}
	for _, name := range []string{"vehicle-l", "vehicle-m", "vehicle-s"} {
		var footprints []int64
		for _, name := range []string{name + "-exit1", name + "-exit2", name} {
			m, err := r.Find(name, "")
			if err != nil {
				t.Fatal(err)
			}
			f, err := e.Load(layout(t, m))
			if err != nil {
				t.Fatal(err)
			}
			footprints = append(footprints, f.Static)
		}

		// The heads of the smallest network's exits are larger than what goes on behind them.
		grows := footprints[0] < footprints[1] && footprints[1] < footprints[2]
		if grows == (name == "vehicle-s") {
			t.Errorf("%s: bytes %v: want each exit smaller than what goes on behind it, but for vehicle-s", name, footprints)
		}
	}
}
