//go:build cgo

package ort

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// residentBytes is what the process has in memory, without what Go has freed.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// manyWeights is a model of many small weights, 32 MiB in all: what C's allocator keeps when they are freed.
func manyWeights(t *testing.T) *repo.Model {
	const width, depth = 256, 128
	g := onnx.NewBuilder("deep")
	x := g.Input("x", onnx.Float, onnx.Batched(width))
	at := x
	for i := range depth {
		w := make([]float32, width*width)
		for k := range w {
			w[k] = float32((k+i)%7) / 1000
		}
		at = g.Node("MatMul", []string{at, g.Const(onnx.FloatTensor(fmt.Sprint("w", i), w, width, width))})
	}
	g.Output("y", at, onnx.Float, onnx.Batched(width))
	return writeModel(t, "deep", 4, g, []model.Tensor{tensor("x", "FP32", width)}, []model.Tensor{tensor("y", "FP32", width)})
}

// TestUnloadReturnsMemory wants the process to hold, once a model is unloaded, what it held before: all but a quarter
// of what the model took.
func TestUnloadReturnsMemory(t *testing.T) {
	r := openRuntime(t)
	e := r.Executor()
	defer e.Close()
	m := layout(t, manyWeights(t))
	slots := devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))
	round := func() (before, during, after int64) {
		before = residentBytes(t)
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		during = residentBytes(t)
		if err := e.Unload(m); err != nil {
			t.Fatal(err)
		}
		return before, during, residentBytes(t)
	}
	round() // what the library keeps for good

	for range 3 {
		before, during, after := round()
		t.Logf("%d MiB before, %d loaded, %d unloaded", before>>20, during>>20, after>>20)
		if during-before < 16<<20 {
			t.Errorf("a model of 32 MiB took %d MiB", (during-before)>>20)
		}
		if after-before > (during-before)/4 {
			t.Errorf("%d MiB of %d are still held", (after-before)>>20, (during-before)>>20)
		}
	}
}
