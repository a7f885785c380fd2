//go:build cgo

package ort

import (
	"fmt"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/internal/memcost"
)

// manyWeights returns a model of many small weights, 32 MiB in all, whose memory C's allocator keeps when they are
// freed.
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

// TestUnloadReturnsMemory: after a model is unloaded, the process holds as much memory as before, except at most a
// quarter of the model's.
func TestUnloadReturnsMemory(t *testing.T) {
	r := openRuntime(t)
	e := r.Executor()
	defer e.Close()
	m := layout(t, manyWeights(t))
	slots := devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))
	memcost.CheckReturned(t, 16<<20, func() {
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
	}, func() {
		if err := e.Unload(m); err != nil {
			t.Fatal(err)
		}
	})
}
