package accel

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
)

// plusOne is a program whose single kernel joins the halves of a row and adds one to every thousandth byte.
type plusOne struct {
	kernel   cuda.Kernel
	module   *cuda.Module
	released int
	fail     error
}

func (p *plusOne) Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error {
	var params [32]byte
	for i, a := range []cuda.Address{inputs[0], inputs[1], outputs[0], cuda.Address(n)} {
		binary.LittleEndian.PutUint64(params[8*i:], uint64(a))
	}
	s.Launch(st, p.kernel, cuda.Dim{X: 1, Y: 1, Z: 1}, cuda.Dim{X: 1, Y: 1, Z: 1}, 0, params[:])
	return p.fail
}

func (p *plusOne) Release(int) error { p.released++; return nil }

func (p *plusOne) Succeed(*device.Model, *repo.Model) (Program, error) { return nil, device.ErrShape }

func (p *plusOne) Footprint() device.Footprint { return device.Footprint{} }

func (p *plusOne) Close() error { p.module.Free(); return nil }

func kernel(m *cuda.DeviceMemory, l cuda.Launch) {
	word := func(i int) cuda.Address { return cuda.Address(binary.LittleEndian.Uint64(l.Params[8*i:])) }
	n := int64(word(3))
	a, b, out := m.Bytes(word(0), n*half), m.Bytes(word(1), n*half), m.Bytes(word(2), n*rowBytes)
	for i := range n {
		copy(out[i*rowBytes:], a[i*half:(i+1)*half])
		copy(out[i*rowBytes+half:], b[i*half:(i+1)*half])
	}
	for i := 0; i < len(out); i += stride {
		out[i]++
	}
}

const stride = 1000 // of a row's bytes

// Sizes of an input and of an output in bytes.
const (
	half     = 40_000
	rowBytes = 2 * half
)

func testModel(t testing.TB) *device.Model {
	return devicetest.Emulated(t, "plus one", 4, time.Millisecond, 0, []model.Tensor{{Name: "a", Datatype: "UINT8", Shape: []int64{half}}, {Name: "b", Datatype: "UINT8", Shape: []int64{half}}},
		[]model.Tensor{{Name: "y", Datatype: "UINT8", Shape: []int64{rowBytes}}})
}

// rig is an executor with a model loaded on four slots.
type rig struct {
	*Executor
	t     testing.TB
	model *device.Model
	slots []*device.Slot
	prog  *plusOne
}

func config(p *plusOne, movable bool, timeout time.Duration, dev *cuda.Device) Config {
	return Config{Movable: movable, Timeout: timeout, Compile: func(*device.Model, sync.Locker) (Program, error) {
		var err error
		if p.module, err = dev.LoadModule([]byte("x")); err != nil {
			return nil, err
		}
		if p.kernel, err = p.module.Kernel("plus one"); err != nil {
			p.module.Free()
			return nil, err
		}
		return p, nil
	}}
}

func open(t testing.TB, e cuda.Emulation, movable bool) *rig {
	t.Helper()
	e.Kernels = map[string]cuda.KernelFunc{"plus one": kernel}
	dev, err := cuda.OpenEmulated(e)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, model: testModel(t), prog: &plusOne{}}
	if r.Executor, err = New(dev, config(r.prog, movable, 30*time.Second, dev)); err != nil {
		t.Fatal(err)
	}
	r.slots = devicetest.Slots(t, 4, device.SlotBytes([]*device.Model{r.model}))
	if err := devicetest.Load(r, r.model, r.slots); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) close() {
	if err := r.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
	if l := r.dev.Live(); l != (cuda.Live{}) {
		r.t.Errorf("left open: %+v", l)
	}
}

func (r *rig) fill(slot, row int, v byte) {
	for k := range 2 {
		copy(r.slots[slot].InputRow(r.model, k, row), bytes.Repeat([]byte{v}, half))
	}
}

func (r *rig) execute(slot, rows int) error {
	return device.Execute(r, device.Batch{Model: r.model, Slot: r.slots[slot], Rows: rows})
}

func (r *rig) want(slot, row int, v byte) {
	r.t.Helper()
	want := bytes.Repeat([]byte{v}, rowBytes)
	for i := 0; i < rowBytes; i += stride {
		want[i]++
	}
	if out := r.slots[slot].OutputRow(r.model, 0, row); !bytes.Equal(out, want) {
		r.t.Fatalf("slot %d, row %d: %d … %d, want %d … %d", slot, row, out[0], out[rowBytes-1], v+1, v)
	}
}
