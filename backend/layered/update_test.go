package layered

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// TestAnUpdateWithoutMemory fails each call of an update in turn that may allocate: the old weights answer on, nothing is
// lost, and once there is memory the update succeeds.
func TestAnUpdateWithoutMemory(t *testing.T) {
	for k := 0; ; k++ {
		hit, failing := "", func(cuda.Site) cuda.Fault { return cuda.Fault{} }
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault { return failing(s) }}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		m := product(t, "m", 2, 3)
		slots := slotsFor(t, 1, m)
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 8 {
			t.Fatalf("the first weights: %v, %v", got, err)
		}

		weights := product(t, "m", 3, 3).Source
		failing = devicetest.OutOfMemoryAt(k, &hit)
		u, err := e.Prepare(m, weights)
		failing = func(cuda.Site) cuda.Fault { return cuda.Fault{} }
		if (err == nil) != (hit == "") || err != nil && !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("call %d (%s): %v", k, hit, err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 8 {
			t.Errorf("call %d (%s): before the switch %v, %v", k, hit, got, err)
		}

		if err != nil {
			if u, err = e.Prepare(m, weights); err != nil {
				t.Errorf("call %d (%s): a second try: %v", k, hit, err)
			}
		}
		if err := u.Switch(); err != nil {
			t.Error(err)
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 27 {
			t.Errorf("call %d (%s): after the switch %v, %v", k, hit, got, err)
		}
		closeAll(t, hit, dev, e)
		if hit == "" {
			break
		}
	}
}

// TestASwitchEndsNoBatch switches while a batch of the old weights is under way: it ends with them, and its program after
// it.
func TestASwitchEndsNoBatch(t *testing.T) {
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := product(t, "m", 2, 1)
	slots := slotsFor(t, 2, m)
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, e, m, slots[0], 1); err != nil {
		t.Fatal(err)
	}
	held := e.Memory().DeviceBytes
	u, err := e.Prepare(m, product(t, "m", 3, 1).Source)
	if err != nil {
		t.Fatal(err)
	}

	before, after := rowOf(m, slots[0], 1), rowOf(m, slots[1], 1)
	if err := errors.Join(e.Submit(before), u.Switch(), e.Submit(after), e.Wait(before), e.Wait(after)); err != nil {
		t.Fatal(err)
	}
	if a, b := firstOf(m, slots[0]), firstOf(m, slots[1]); a != 2 || b != 3 {
		t.Errorf("%v before the switch and %v after it, want 2 and 3", a, b)
	}
	if now := e.Memory().DeviceBytes; now != held {
		t.Errorf("%d bytes on the device with the old weights, %d with the new ones", held, now)
	}
	closeAll(t, "switch", dev, e)
}

// versionOf returns a version of m whose weights are those of other, and whose file is only in memory.
func versionOf(t *testing.T, m, other *device.Model) *device.Model {
	t.Helper()
	next, source := *m, *m.Source
	file, err := os.ReadFile(other.Source.ONNXPath)
	if err != nil {
		t.Fatal(err)
	}
	source.Version, source.ONNXPath, source.File = "2", "no such file", file
	next.Version, next.Source = "2", &source
	return &next
}

// TestAVersionIsMadeFromTheOneBefore: both answer with their own weights, the second without a batch to prepare it or a
// graph to capture, and either can go first.
func TestAVersionIsMadeFromTheOneBefore(t *testing.T) {
	for _, first := range []int{0, 1} {
		ops := map[string]int{}
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault { ops[s.Op]++; return cuda.Fault{} }}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		m := product(t, "m", 2, 3)
		next := versionOf(t, m, product(t, "m", 3, 3))
		slots := slotsFor(t, 1, m)
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		for range depthOfAreas {
			if _, err := run(t, e, m, slots[0], 1); err != nil {
				t.Fatal(err)
			}
		}

		graphs, captures := ops["graph"], ops["capture"]
		if _, err := e.LoadLike(next, m); err != nil {
			t.Fatal(err)
		}
		if ops["graph"] != graphs || ops["capture"] != captures+2*depthOfAreas {
			t.Errorf("%d batches and %d captures for a version: want none, and one for each size and area", ops["graph"]-graphs, ops["capture"]-captures)
		}
		captures, copies := ops["capture"], ops["copy in"]
		both := []*device.Model{m, next}
		for range depthOfAreas {
			for i, want := range []float32{8, 27} {
				if got, err := run(t, e, both[i], slots[0], 1); err != nil || got != want {
					t.Errorf("version %d: %v, %v, want %v", i+1, got, err, want)
				}
			}
		}
		if n := ops["capture"] - captures; n != 0 {
			t.Errorf("%d graphs were captured after the load", n)
		}
		if n := ops["copy in"] - copies; n != 2*depthOfAreas {
			t.Errorf("%d copies to the device in %d batches of one input", n, 2*depthOfAreas)
		}

		if err := e.Unload(both[first]); err != nil {
			t.Error(err)
		}
		if got, err := run(t, e, both[1-first], slots[0], 1); err != nil || got != []float32{27, 8}[first] {
			t.Errorf("alone: %v, %v", got, err)
		}
		other := versionOf(t, m, product(t, "m", 3, 2))
		if _, err := e.LoadLike(other, both[1-first]); !errors.Is(err, device.ErrShape) {
			t.Errorf("a version with another depth: %v, want %v", err, device.ErrShape)
		}
		closeAll(t, "version", dev, e)
	}
}

// depthOfAreas is how many areas batches use in turn: each has its graphs.
const depthOfAreas = limits.Ahead

// TestBatchesRunBetweenTheLayersOfAVersion makes a version of a model whose layers take 5 ms each to copy: batches run
// meanwhile, and none waits for more than a layer. If they waited for all of the copies, one or two would run.
func TestBatchesRunBetweenTheLayersOfAVersion(t *testing.T) {
	const layers = 20
	dev, e, err := openOn(t, cuda.Emulation{CopyInBandwidth: 4096 / 5e-3}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	m := product(t, "m", 1, layers)
	next := versionOf(t, m, product(t, "m", 2, layers))
	slots := slotsFor(t, 1, m)
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, e, m, slots[0], 1); err != nil {
		t.Fatal(err)
	}

	made := make(chan error, 1)
	go func() {
		_, err := e.LoadLike(next, m)
		made <- err
	}()
	batches := 0
	for {
		select {
		case err := <-made:
			if err != nil {
				t.Fatal(err)
			}
			if batches < layers/2 {
				t.Errorf("%d batches ran while %d layers were copied", batches, layers)
			}
			closeAll(t, "layers", dev, e)
			return
		default:
		}
		if got, err := run(t, e, m, slots[0], 1); err != nil || got != 1 {
			t.Fatalf("beside the version: %v, %v", got, err)
		}
		batches++
	}
}

// BenchmarkVersion is what a version of vehicle-s takes beside the one before it: loaded and warmed up, or made from it.
// The kernels run on the processor, so only the batches say what a GPU would do.
func BenchmarkVersion(b *testing.B) {
	graphs := 0
	dev, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: kernels.Reference(), Fault: func(s cuda.Site) cuda.Fault {
		if s.Op == "graph" {
			graphs++
		}
		return cuda.Fault{}
	}})
	if err != nil {
		b.Fatal(err)
	}
	e, err := New(dev, Config{Timeout: patient})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()

	source, err := repo.OpenModel([]string{filepath.Join("..", "..", "models")}, "vehicle-s", repo.Options{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := device.NewModel(&source[0], 8, 1<<20)
	if err != nil {
		b.Fatal(err)
	}
	next := *m
	slots := devicetest.Slots(b, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		b.Fatal(err)
	}

	run := func(name string, make func() error) {
		b.Run(name, func(b *testing.B) {
			from := graphs
			for b.Loop() {
				if err := errors.Join(make(), e.Unload(&next)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(graphs-from)/float64(b.N), "batches/op")
		})
	}
	run("loaded", func() error { return devicetest.Load(e, &next, slots) })
	run("made", func() error { _, err := e.LoadLike(&next, m); return err })
}
