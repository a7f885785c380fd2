package onnx_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"downbeat.dev/backend/onnx"
)

// TestTheSignatureIsOfTheWhole: the outputs of a file's early exits are not those of the model that the file is named
// for, and a name that only looks like an exit's is an output of the whole.
func TestTheSignatureIsOfTheWhole(t *testing.T) {
	g := onnx.NewBuilder("structure")
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	for _, name := range []string{"y" + onnx.ExitSuffix(1), "y" + onnx.ExitSuffix(12), "y", "y.exits", "z.exit1.more"} {
		x = g.Node("Mul", []string{x, g.Scalar(2)})
		g.Output(name, x, onnx.Float, onnx.Batched(4))
	}
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}

	graph, err := onnx.Signature(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "[{x FP32 [-1 4]}] [{y FP32 [-1 4]} {y.exits FP32 [-1 4]} {z.exit1.more FP32 [-1 4]}]"
	if got := fmt.Sprint(graph.Inputs, graph.Outputs); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
