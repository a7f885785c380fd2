package layered

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/residency"
)

// product returns y = x·w, 32 wide: 4 KiB of weights with v on the diagonal.
func product(t *testing.T, name string, v float32, depth int) *device.Model {
	g := onnx.NewBuilder(name)
	x := g.Input("x", onnx.Float, onnx.Batched(32))
	for range depth {
		w := make([]float32, 32*32)
		for i := range 32 {
			w[i*33] = v
		}
		x = g.Node("MatMul", []string{x, g.Const(onnx.FloatTensor("", w, 32, 32))})
	}
	g.Output("y", x, onnx.Float, onnx.Batched(32))
	return writeModel(t, g, 2, 32)
}

func slotsFor(t *testing.T, n int, models ...*device.Model) []*device.Slot {
	return devicetest.Slots(t, n, device.SlotBytes(models))
}

// run executes one row of x and returns the first output.
func run(t *testing.T, e *Executor, m *device.Model, s *device.Slot, x float32) (float32, error) {
	t.Helper()
	err := device.Execute(e, rowOf(m, s, x))
	return firstOf(m, s), err
}

// rowOf returns a batch of one row of x.
func rowOf(m *device.Model, s *device.Slot, x float32) device.Batch {
	payload := make([]byte, m.InBytes)
	for i := 0; i < len(payload); i += 4 {
		binary.LittleEndian.PutUint32(payload[i:], math.Float32bits(x))
	}
	devicetest.SetInput(m, s, 0, payload)
	return device.Batch{Model: m, Slot: s, Rows: 1}
}

// firstOf returns the first output in a slot.
func firstOf(m *device.Model, s *device.Slot) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(s.OutputRow(m, 0, 0)))
}

func openOn(t *testing.T, em cuda.Emulation, c Config) (*cuda.Device, *Executor, error) {
	t.Helper()
	em.Kernels = kernels.Reference()
	dev, err := cuda.OpenEmulated(em)
	if err != nil {
		t.Fatal(err)
	}
	c.Timeout = 30 * time.Second
	e, err := New(dev, c)
	return dev, e, err
}

func closeAll(t *testing.T, what string, dev *cuda.Device, e *Executor) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Errorf("%s: close: %v", what, err)
	}
	if l := dev.Live(); l != (cuda.Live{}) {
		t.Errorf("%s: left open: %+v", what, l)
	}
}

// TestOutOfMemoryAtEverySite fails each allocation of a whole life in turn: opening, loading two models of which one
// fits at a time, and batches that evict and reload. Each failure is an error that says so, the same call then passes
// with the right answer, and nothing stays open.
func TestOutOfMemoryAtEverySite(t *testing.T) {
	for n := 0; ; n++ {
		hit := ""
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, MemoryBytes: 1 << 20, Fault: devicetest.OutOfMemoryAt(n, &hit)}, Config{DeviceBytes: 5 << 10, PinnedBytes: 4 << 10})
		what := fmt.Sprintf("call %d (%s)", n, hit)
		if err != nil {
			if hit == "" || !errors.Is(err, cuda.ErrOutOfMemory) || dev.Live() != (cuda.Live{}) {
				t.Errorf("%s: open: %v, live %+v", what, err, dev.Live())
			}
			continue
		}
		failed := work(t, e)
		if t.Failed() {
			t.Fatalf("call %d (%s)", n, hit)
		}
		what = fmt.Sprintf("call %d (%s)", n, hit)
		for _, err := range failed {
			if hit == "" || !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if len(failed) > 1 || len(failed) == 0 && hit != "" && hit != "register" && hit != "pin" {
			t.Errorf("%s: %d calls failed", what, len(failed))
		}
		closeAll(t, what, dev, e)
		if hit == "" {
			break
		}
	}
}

// work loads two models, runs them in turn, retries failed calls, and returns the failures.
func work(t *testing.T, e *Executor) (failed []error) {
	a, b := product(t, "a", 2, 1), product(t, "b", 3, 1)
	slots := slotsFor(t, 2, a, b)
	for _, m := range []*device.Model{a, b} {
		if err := devicetest.Load(e, m, slots); err != nil {
			failed = append(failed, err)
			if err := devicetest.Load(e, m, slots); err != nil {
				t.Errorf("load %s again: %v", m.Name, err)
			}
		}
	}
	for i := range 6 {
		m, factor := a, float32(2)
		if i%2 == 1 {
			m, factor = b, 3
		}
		got, err := run(t, e, m, slots[i%2], float32(i))
		if err != nil {
			failed = append(failed, err)
			got, err = run(t, e, m, slots[i%2], float32(i))
		}
		if err != nil || got != factor*float32(i) {
			t.Errorf("batch %d: %v, %v, want %v", i, got, err, factor*float32(i))
		}
	}
	return failed
}

// TestOutOfMemoryBesideABatch fails each allocation while batches of three models run two at a time on a device that
// holds two of them. A batch that is refused while another runs passes when that one has ended, or when it is
// submitted again; answers are right, and nothing stays open.
func TestOutOfMemoryBesideABatch(t *testing.T) {
	for n := 0; ; n++ {
		armed, hit := false, ""
		fail := devicetest.OutOfMemoryAt(n, &hit)
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, MemoryBytes: 1 << 20, Fault: func(s cuda.Site) cuda.Fault {
			if !armed {
				return cuda.Fault{}
			}
			return fail(s)
		}}, Config{DeviceBytes: 9 << 10, PinnedBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		models := []*device.Model{product(t, "a", 2, 1), product(t, "b", 3, 1), product(t, "c", 5, 1)}
		slots := slotsFor(t, 3, models...)
		for _, m := range models {
			if err := devicetest.Load(e, m, slots); err != nil {
				t.Fatal(err)
			}
		}
		armed = true
		refused := pairs(t, e, models, slots)
		if len(refused) > 1 || len(refused) == 0 && hit != "" && hit != "pin" { // pageable memory suffices
			t.Errorf("call %d (%s): refused %v", n, hit, refused)
		}
		closeAll(t, fmt.Sprintf("call %d (%s)", n, hit), dev, e)
		if hit == "" {
			break
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// pairs runs batches of the models in turn, two at a time, and returns those refused at first.
func pairs(t *testing.T, e *Executor, models []*device.Model, slots []*device.Slot) (refused []error) {
	factors := []float32{2, 3, 5}
	var last device.Batch
	land := func(k int) {
		if err := e.Wait(last); err != nil {
			t.Errorf("batch %d: %v", k, err)
		}
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(last.Slot.OutputRow(last.Model, 0, 0))), factors[k%3]*float32(k); got != want {
			t.Errorf("batch %d: %v, want %v", k, got, want)
		}
	}
	for k := range 9 {
		b := device.Batch{Model: models[k%3], Slot: slots[k%3], Rows: 1}
		x := make([]byte, b.Model.InBytes)
		for i := 0; i < len(x); i += 4 {
			binary.LittleEndian.PutUint32(x[i:], math.Float32bits(float32(k)))
		}
		devicetest.SetInput(b.Model, b.Slot, 0, x)
		err := e.Submit(b)
		if k > 0 {
			land(k - 1)
		}
		if err != nil {
			refused = append(refused, err)
			err = e.Submit(b)
		}
		if err != nil {
			t.Fatalf("batch %d, alone: %v", k, err)
		}
		last = b
	}
	land(8)
	return refused
}

func TestWeightsThatDoNotFit(t *testing.T) {
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{DeviceBytes: 10 << 10})
	if err != nil {
		t.Fatal(err)
	}
	small, deep := product(t, "small", 2, 1), product(t, "deep", 2, 4) // 4 and 16 KiB
	g := onnx.NewBuilder("wide")
	x := g.Input("x", onnx.Float, onnx.Batched(32))
	w := make([]float32, 32*128)
	x = g.Node("MatMul", []string{x, g.Const(onnx.FloatTensor("", w, 32, 128))})
	g.Output("y", g.Node("MatMul", []string{x, g.Const(onnx.FloatTensor("", w, 128, 32))}), onnx.Float, onnx.Batched(32))
	wide := writeModel(t, g, 2, 32) // 16 KiB in one layer
	slots := slotsFor(t, 1, small, deep, wide)
	for _, m := range []*device.Model{deep, wide} {
		if err := devicetest.Load(e, m, slots); !errors.Is(err, residency.ErrDoesNotFit) || errors.Is(err, device.ErrLost) || !strings.Contains(err.Error(), "10240") {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
	if err := devicetest.Load(e, small, slots); err != nil {
		t.Fatal(err)
	}
	if got, err := run(t, e, small, slots[0], 7); got != 14 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	closeAll(t, "too large", dev, e)
}

// TestModelsThatDoNotFitTogetherTakeTurns: the second of two batches is refused while the first is under way, and
// accepted when it has ended: each model fits in device memory, both together do not.
func TestModelsThatDoNotFitTogetherTakeTurns(t *testing.T) {
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{DeviceBytes: 6 << 10})
	if err != nil {
		t.Fatal(err)
	}
	a, b := product(t, "a", 2, 1), product(t, "b", 3, 1) // 4 KiB each
	slots := slotsFor(t, 2, a, b)
	for _, m := range []*device.Model{a, b} {
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		first, second := device.Batch{Model: a, Slot: slots[0], Rows: 1}, device.Batch{Model: b, Slot: slots[1], Rows: 1}
		if err := e.Submit(first); err != nil {
			t.Fatal(err)
		}
		if err := e.Submit(second); !errors.Is(err, device.ErrBusy) || errors.Is(err, device.ErrLost) {
			t.Fatalf("beside another: %v", err)
		}
		if err := e.Wait(first); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Submit(second), e.Wait(second)); err != nil {
			t.Fatal(err)
		}
		if got, err := run(t, e, b, slots[1], 7); got != 21 || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
	closeAll(t, "two models", dev, e)
}

// TestNaNWeights: a model with NaN weights is refused by name at Load; others are not affected.
func TestNaNWeights(t *testing.T) {
	dev, e, err := openOn(t, cuda.Emulation{Virtual: true}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	bad, good := product(t, "bad", float32(math.NaN()), 1), product(t, "good", 5, 1)
	slots := slotsFor(t, 1, bad, good)
	if err := devicetest.Load(e, bad, slots); err == nil || !strings.Contains(err.Error(), "element 0 is not a number") {
		t.Errorf("NaN weights: %v", err)
	}
	if err := devicetest.Load(e, good, slots); err != nil {
		t.Fatal(err)
	}
	if got, err := run(t, e, good, slots[0], 2); err != nil || got != 10 {
		t.Errorf("after NaN weights: %v, %v", got, err)
	}
	if got, err := run(t, e, good, slots[0], float32(math.NaN())); err != nil || !math.IsNaN(float64(got)) {
		t.Errorf("a NaN in the input: %v, %v", got, err)
	}
	closeAll(t, "NaN", dev, e)
}

// TestTwoProcessesShareADevice: another process takes memory before and during the use of the device.
func TestTwoProcessesShareADevice(t *testing.T) {
	var taken atomic.Int64
	em := cuda.Emulation{Virtual: true, MemoryBytes: 1 << 20, Taken: taken.Load}
	taken.Store(1<<20 - 512)
	if dev, _, err := openOn(t, em, Config{}); !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "0 of the device's 1024 KiB were free") || dev.Live() != (cuda.Live{}) {
		t.Errorf("on a full device: %v, live %+v", err, dev.Live())
	}
	taken.Store(512 << 10) // the reservation is made from the free memory
	dev, e, err := openOn(t, em, Config{})
	if err != nil {
		t.Fatal(err)
	}
	a := product(t, "a", 2, 1)
	taken.Store(1 << 20) // the other process takes the rest
	slots := slotsFor(t, 2, a)
	if err := devicetest.Load(e, a, slots); !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, device.ErrLost) {
		t.Errorf("load: %v", err)
	}
	taken.Store(512 << 10)
	if err := devicetest.Load(e, a, slots); err != nil {
		t.Errorf("after the other has given memory back: %v", err)
	}
	taken.Store(1 << 20) // reserved memory stays reserved
	if got, err := run(t, e, a, slots[0], 4); err != nil || got != 8 {
		t.Errorf("got %v, %v", got, err)
	}
	closeAll(t, "shared", dev, e)
}

// TestADeviceThatDisappears loses the device at each command of a batch: a batch with some early rows is lost
// entirely, and closing leaves nothing open.
func TestADeviceThatDisappears(t *testing.T) {
	for _, op := range []string{"submit", "copy in", "copy", "launch", "graph", "copy out"} {
		armed := false
		dev, e, err := openOn(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault {
			if armed && s.Op == op {
				return cuda.Fault{Code: cuda.CodeDeviceUnavailable}
			}
			return cuda.Fault{}
		}}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		g := onnx.NewBuilder("large")
		x := g.Input("x", onnx.Float, onnx.Batched(10_000))
		g.Output("y", g.Node("Add", []string{x, x}), onnx.Float, onnx.Batched(10_000))
		m := writeModel(t, g, 2, 10_000)
		slots := slotsFor(t, 1, m)
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		armed = true
		e.Arrived(m, slots[0], device.AllInputs, 0, 1)
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 2}); !errors.Is(err, device.ErrLost) || !errors.Is(err, cuda.ErrDeviceLost) {
			t.Errorf("%s: %v", op, err)
		}
		if _, err := e.Load(product(t, "other", 1, 1)); !errors.Is(err, cuda.ErrDeviceLost) {
			t.Errorf("%s: a lost device loads models: %v", op, err)
		}
		closeAll(t, op, dev, e)
	}
}
