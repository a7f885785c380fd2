package layered

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

// structures are models of the tree with two exits each: of the largest one the exits' heads have a convolution of their own.
var structures = []string{"vehicle-l", "vehicle-m", "vehicle-s"}

// openStructure lays out a model of the tree and its exits.
func openStructure(t *testing.T, name string) (all []*device.Model) {
	t.Helper()
	r, err := repo.Open(filepath.Join("..", "..", "models"))
	if err != nil {
		t.Fatal(err)
	}
	exits, err := repo.ExitsOf(r.Dir, name)
	if err != nil || len(exits) != 2 {
		t.Fatalf("exits of %s: %v, %v", name, exits, err)
	}
	for _, name := range append([]string{name}, exits...) {
		m, err := r.Find(name, "")
		if err != nil {
			t.Fatal(err)
		}
		d, err := device.NewModel(m, 2, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// bytesAfter returns the parameters' memory on the device after each of the models has run a batch.
func bytesAfter(t *testing.T, models []*device.Model) (int64, []device.Footprint) {
	t.Helper()
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, "structure", dev, e)
	slots := slotsFor(t, 1, models...)
	for _, s := range slots {
		if err := e.AddSlot(s); err != nil {
			t.Fatal(err)
		}
	}
	var prints []device.Footprint
	for _, m := range models {
		f, err := e.Load(m)
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, f)
	}
	for _, m := range models {
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
			t.Fatal(err)
		}
	}
	held := e.Memory().DeviceBytes
	for _, m := range models {
		if err := e.Unload(m); err != nil {
			t.Fatal(err)
		}
	}
	if left := e.Memory().DeviceBytes; left != 0 {
		t.Errorf("%d bytes are left of models that were unloaded", left)
	}
	return held, prints
}

// headBytes returns the memory of the layers that the exits do not share, each rounded up as device memory is.
func headBytes(t *testing.T, exits []*device.Model) (bytes int64) {
	t.Helper()
	for _, m := range exits {
		part, err := onnx.ReadPart(m.Source)
		if err != nil {
			t.Fatal(err)
		}
		whole := *m.Source
		whole.ExitStage = 0
		parent, err := onnx.ReadPart(&whole)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Graph(part.Model)
		if err != nil {
			t.Fatal(err)
		}
		p, err := layers.Compile(g, 1, layers.FP32)
		if err != nil {
			t.Fatal(err)
		}

		// A layer of the head has weights, followed by its other constants.
		own := map[string]bool{}
		for _, c := range part.Graph.Initializers {
			own[c.Name] = c.Type == onnx.Float && len(c.Dims) > 0 && parent.Graph.Initializer(c.Name) == nil
		}
		for i := range p.Layers {
			var layer int64
			mine := false
			for _, k := range p.Layers[i].Params {
				layer = (layer+255)&^255 + int64(len(p.Params[k].Data))
				for name, is := range own {
					mine = mine || is && (p.Params[k].Name == name || hasSource(p.Params[k].Name, name))
				}
			}
			if mine {
				bytes += (layer + 255) &^ 255
			}
		}
	}
	return bytes
}

// hasSource reports whether a parameter was derived from a constant.
func hasSource(param, constant string) bool {
	return slices.Contains(filepath.SplitList(filepath.FromSlash(param)), constant) || filepath.Base(param) == constant
}

// TestAModelAndItsExitsHoldItsParametersOnce: on a device a model and its exits take the memory of the model and of
// the exits' heads, and free all of it; answers equal those of separate ONNX graphs.
func TestAModelAndItsExitsHoldItsParametersOnce(t *testing.T) {
	for _, name := range structures {
		all := openStructure(t, name)
		alone, _ := bytesAfter(t, all[:1])
		together, prints := bytesAfter(t, all)
		heads := headBytes(t, all[1:])
		if together != alone+heads {
			t.Errorf("%s: %d bytes with its exits, %d alone: want %d for the heads, got %d", name, together, alone, heads, together-alone)
		}
		t.Logf("%s: %d bytes alone, %d with its exits, of which the heads take %d", name, alone, together, heads)
		for k, f := range prints[1:] {
			if f.Shared <= 0 || f.Shared > f.Static || f.Static-f.Shared > heads {
				t.Errorf("%s exit %d: %+v", name, k+1, f)
			}
		}

		// The exits alone hold the longer beginning, and their heads. Those of the smallest network are larger than all
		// that follows the beginning.
		if exits, _ := bytesAfter(t, all[1:]); exits >= together || exits >= alone && name != "vehicle-s" {
			t.Errorf("%s: its exits alone take %d bytes, it takes %d, all %d", name, exits, alone, together)
		}
	}
}

// TestAnExitIsABeginningOfItsModelsPlan: the layers before the head are launches of the model's own plan.
func TestAnExitIsABeginningOfItsModelsPlan(t *testing.T) {
	for _, name := range structures {
		t.Run(name, func(t *testing.T) { checkBeginnings(t, openStructure(t, name)) })
	}
}

// checkBeginnings compares the plans of exits with their model's, the first of all.
func checkBeginnings(t *testing.T, all []*device.Model) {
	var plans []*layers.Plan
	for _, m := range all {
		g, _, err := readGraph(m.Source, m)
		if err != nil {
			t.Fatal(err)
		}
		p, err := layers.Compile(g, 2, layers.FP32)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	for k, exit := range plans[1:] {
		same := 0
		for same < len(exit.Layers) && same < len(plans[0].Layers) && exit.Layers[same].Op == plans[0].Layers[same].Op && sameParams(exit, plans[0], same) {
			same++
		}
		// After it come a convolution of the largest network, a product and the computation of scores.
		if behind := len(exit.Layers) - same; same < 3 || behind > 4 || behind < 2 {
			t.Errorf("exit %d: %d layers, of which %d are the model's first", k+1, len(exit.Layers), same)
		}
	}
}

func sameParams(a, b *layers.Plan, layer int) bool {
	x, y := a.Layers[layer].Params, b.Layers[layer].Params
	return slices.EqualFunc(x, y, func(i, j int) bool { return slices.Equal(a.Params[i].Data, b.Params[j].Data) })
}

// TestExitsAnswerWithTheirHeads: an exit that shares memory answers as it does alone.
func TestExitsAnswerWithTheirHeads(t *testing.T) {
	for _, name := range structures {
		t.Run(name, func(t *testing.T) { compareAnswers(t, openStructure(t, name)) })
	}
}

// compareAnswers runs a model and its exits, each alone and all together.
func compareAnswers(t *testing.T, all []*device.Model) {
	answers := func(models []*device.Model) (out []float32) {
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(t, "exits", dev, e)
		slots := slotsFor(t, 1, models...)
		for _, m := range models {
			if err := devicetest.Load(e, m, slots); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range models {
			payload := make([]byte, m.InBytes)
			for i := range payload {
				payload[i] = byte(i * 7)
			}
			devicetest.SetInput(m, slots[0], 0, payload)
			if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
				t.Fatal(err)
			}
			row := slots[0].OutputRow(m, 0, 0)
			for i := 0; i < len(row); i += 4 {
				out = append(out, math.Float32frombits(uint32(row[i])|uint32(row[i+1])<<8|uint32(row[i+2])<<16|uint32(row[i+3])<<24))
			}
		}
		return out
	}

	together := answers(all)
	for k := range all {
		n := len(together) / len(all)
		if alone := answers(all[k : k+1]); !slices.Equal(alone, together[k*n:(k+1)*n]) {
			t.Errorf("%s: %v alone, %v beside the others", all[k].Name, alone, together[k*n:(k+1)*n])
		}
	}
	if slices.Equal(together[:6], together[6:12]) {
		t.Error("the exit answers as its model does: its head is not used")
	}
}
