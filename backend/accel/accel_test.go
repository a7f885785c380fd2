package accel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/residency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plusOne is a program whose only kernel joins the halves of a row and adds one to every thousandth byte.
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

func (p *plusOne) Update(*repo.Model) (func(*cuda.Event) error, error) { return nil, device.ErrShape }

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

// Bytes of an input and of an output.
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

// TestEarlyRows draws what arrives early, what is given up, and what changes afterwards: outputs are always
// those of the inputs at Execute.
func TestEarlyRows(t *testing.T) {
	for _, movable := range []bool{true, false} {
		r := open(t, cuda.Emulation{Virtual: true}, movable)
		rng := rand.New(rand.NewPCG(3, 9))
		for round := range 400 {
			slot, rows := rng.IntN(3), 1+rng.IntN(4)
			var v [4]byte
			for i := range rows {
				v[i] = byte(rng.Uint32())
				r.fill(slot, i, v[i])
			}
			for i := 0; i < rows; i += 1 + rng.IntN(2) {
				if rng.IntN(3) > 0 {
					r.Arrived(r.model, r.slots[slot], rng.IntN(3)-1, i, min(rows, i+1+rng.IntN(2)))
				}
			}
			if rng.IntN(4) == 0 {
				r.Abandon(r.model, r.slots[slot])
				if rng.IntN(2) == 0 {
					continue // never runs
				}
				v[0]++
				r.fill(slot, 0, v[0])
			}
			if err := r.execute(slot, rows); err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				r.want(slot, i, v[i])
			}
			if round == 200 {
				r.prog.fail = errors.New("does not fit")
				r.Arrived(r.model, r.slots[0], device.AllInputs, 0, 2)
				if err := r.execute(0, 2); err == nil || errors.Is(err, device.ErrLost) {
					t.Errorf("a program that refuses: %v", err)
				}
				r.prog.fail = nil
			}
		}
		r.close()
	}
}

// stages is a device on which a batch of four rows takes as long in each stage.
type stages struct{ in, compute, out time.Duration }

func (c stages) emulation() cuda.Emulation {
	return cuda.Emulation{Virtual: true, CopyInBandwidth: 4 * rowBytes / c.in.Seconds(), CopyOutBandwidth: 4 * rowBytes / c.out.Seconds(),
		CommandTime: time.Microsecond, KernelTime: func(cuda.Launch) time.Duration { return c.compute }}
}

// flow is the throughput of consecutive batches of four rows in virtual time, as a share of what the slowest
// stage alone would reach: with so many under way, and rows that arrive before their batch is submitted or not.
func (c stages) flow(t *testing.T, movable, early bool, under int) (share float64) {
	const batches = 50
	r := open(t, c.emulation(), movable)
	defer r.close()
	arrive := func(slot int) {
		for i := range 4 {
			r.fill(slot, i, byte(slot))
			if early {
				r.Arrived(r.model, r.slots[slot], device.AllInputs, i, i+1)
			}
		}
	}
	batch := func(i int) device.Batch { return device.Batch{Model: r.model, Slot: r.slots[i%4], Rows: 4} }
	begin := r.dev.Now()
	arrive(0)
	for i := range batches + under - 1 {
		if i < batches {
			if err := r.Submit(batch(i)); err != nil {
				t.Fatal(err)
			}
			arrive((i + 1) % 4)
		}
		if last := i - under + 1; last >= 0 {
			if err := r.Wait(batch(last)); err != nil {
				t.Fatal(err)
			}
			r.want(last%4, 3, byte(last%4))
		}
	}
	took := r.dev.Now() - begin
	r.Abandon(r.model, r.slots[batches%4])
	return float64(batches*max(c.in, c.compute, c.out)) / float64(took)
}

// TestStagesOverlap wants consecutive batches to take as long as their slowest stage: copies in, compute and
// copies out of different batches go on at once when two are under way.
func TestStagesOverlap(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []stages{{ms, 2 * ms, ms / 20}, {2 * ms, ms, ms / 20}, {ms, ms, ms / 20}, {ms, 2 * ms, ms}, {ms / 2, ms, ms}, {ms / 2, ms, 2 * ms}, {ms, ms, ms}} {
		for _, movable := range []bool{true, false} {
			both, late, alone := c.flow(t, movable, true, 2), c.flow(t, movable, false, 2), c.flow(t, movable, true, 1)
			one := c.flow(t, movable, false, 1)
			t.Logf("copy in %-5v compute %-3v copy out %-5v movable %-5v: %.2f of the bound; rows not early %.2f; one at a time %.2f, rows not early %.2f",
				c.in, c.compute, c.out, movable, both, late, alone, one)
			if both < 0.9 {
				t.Errorf("%+v, movable %v: %.2f of the bound, want 0.9 at least", c, movable, both)
			}
			if slow := float64(max(c.in, c.compute, c.out)) / float64(c.in+c.compute+c.out); one > slow+0.02 {
				t.Errorf("%+v, movable %v: %.2f of the bound one at a time: want no more than the sum of its stages lets through, %.2f", c, movable, one, slow)
			}
		}
	}
}

// TestEachCopyStartsWhenItsRowArrives has rows of a batch arrive one each millisecond, which is as long as a row's
// copy takes: when the last has arrived only its own copy is left.
func TestEachCopyStartsWhenItsRowArrives(t *testing.T) {
	const ms = time.Millisecond
	for _, early := range []bool{true, false} {
		r := open(t, stages{4 * ms, 2 * ms, ms}.emulation(), true)
		begin := r.dev.Now()
		for i := range 4 {
			r.dev.Advance(ms)
			r.fill(0, i, byte(i))
			if early {
				r.Arrived(r.model, r.slots[0], device.AllInputs, i, i+1)
			}
		}
		if err := r.execute(0, 4); err != nil {
			t.Fatal(err)
		}
		want := (4 + 4 + 2 + 1) * ms
		if early {
			want = (4 + 1 + 2 + 1) * ms
		}
		if took := (r.dev.Now() - begin).Round(ms / 10); took != want {
			t.Errorf("early %v: took %v, want %v", early, took, want)
		}
		r.want(0, 3, 3)
		r.close()
	}
}

// TestTwoUnderWay draws batches of two sizes on four slots, some with early rows, with up to two under way: each
// one's outputs are those of its own inputs, whatever the other does.
func TestTwoUnderWay(t *testing.T) {
	for _, movable := range []bool{true, false} {
		r := open(t, cuda.Emulation{Virtual: true}, movable)
		rng := rand.New(rand.NewPCG(7, 5))
		type flight struct {
			device.Batch
			v byte
		}
		var under []flight
		land := func() {
			f := under[0]
			under = under[1:]
			if err := r.Wait(f.Batch); err != nil {
				t.Fatal(err)
			}
			for i := range f.Rows {
				r.want(f.Slot.Index, i, f.v+byte(i))
			}
		}
		for k := range 300 {
			if len(under) == 2 {
				if !movable {
					if err := r.Submit(device.Batch{Model: r.model, Slot: r.slots[k%4], Rows: 1}); !errors.Is(err, device.ErrBusy) {
						t.Fatalf("a third batch under way: %v", err)
					}
				}
				land()
			}
			f := flight{device.Batch{Model: r.model, Slot: r.slots[k%4], Rows: 1 + rng.IntN(4)}, byte(rng.Uint32())}
			for i := range f.Rows {
				r.fill(k%4, i, f.v+byte(i))
				if rng.IntN(2) == 0 {
					r.Arrived(r.model, f.Slot, rng.IntN(3)-1, i, i+1)
				}
			}
			if err := r.Submit(f.Batch); err != nil {
				t.Fatal(err)
			}
			under = append(under, f)
			if rng.IntN(3) == 0 {
				land()
			}
		}
		for len(under) > 0 {
			land()
		}
		r.close()
	}
}

// TestABatchThatFailsLeavesTheOthersAlone has the second of two refused by its program, by the device for want of
// memory, and by the device in the middle of its submission, while the first is under way.
func TestABatchThatFailsLeavesTheOthersAlone(t *testing.T) {
	for _, movable := range []bool{true, false} {
		refuse := false
		r := open(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault {
			if refuse && s.Op == "submit" {
				refuse = false
				return cuda.Fault{Code: cuda.CodeLaunchResources}
			}
			return cuda.Fault{}
		}}, movable)
		batch := func(slot int) device.Batch { return device.Batch{Model: r.model, Slot: r.slots[slot], Rows: 2} }
		for _, c := range []struct {
			fail error // of the program; nil: the device refuses
			busy bool
		}{{errors.New("does not like it"), false}, {residency.ErrDoesNotFit, true}, {nil, false}} {
			for s := range 2 {
				r.fill(s, 0, byte(s))
				r.fill(s, 1, byte(s))
				r.Arrived(r.model, r.slots[s], device.AllInputs, 1, 2)
			}
			if err := r.Submit(batch(0)); err != nil {
				t.Fatal(err)
			}
			r.prog.fail, refuse = c.fail, c.fail == nil
			var short *cuda.Error
			err := r.Submit(batch(1))
			its := errors.Is(err, c.fail)
			if c.fail == nil {
				its = errors.As(err, &short) && short.Code == cuda.CodeLaunchResources
			}
			if !its || errors.Is(err, device.ErrBusy) != c.busy || errors.Is(err, device.ErrLost) {
				t.Errorf("%v: %v", c.fail, err)
			}
			r.prog.fail = nil
			if err := r.Wait(batch(0)); err != nil {
				t.Errorf("%v: the batch before: %v", c.fail, err)
			}
			r.want(0, 1, 0)
			r.prog.fail = c.fail
			if err := r.Submit(batch(1)); c.fail != nil && (!errors.Is(err, c.fail) || errors.Is(err, device.ErrBusy)) {
				t.Errorf("%v: alone: %v", c.fail, err)
			} else if err == nil {
				if err := r.Wait(batch(1)); err != nil {
					t.Error(err)
				}
			}
			r.prog.fail = nil
			if err := r.execute(1, 2); err != nil {
				t.Errorf("%v: after: %v", c.fail, err)
			}
			r.want(1, 1, 1)
		}
		r.close()
	}
}

// TestALostDeviceLosesAllUnderWay is a sticky error with two batches under way.
func TestALostDeviceLosesAllUnderWay(t *testing.T) {
	armed := false
	r := open(t, cuda.Emulation{Virtual: true, Fault: func(s cuda.Site) cuda.Fault {
		if armed && s.Op == "launch" {
			return cuda.Fault{Code: cuda.CodeIllegalAddress}
		}
		return cuda.Fault{}
	}}, false)
	first, second := device.Batch{Model: r.model, Slot: r.slots[0], Rows: 1}, device.Batch{Model: r.model, Slot: r.slots[1], Rows: 1}
	armed = true
	if err := r.Submit(first); err != nil {
		t.Fatal(err)
	}
	if err := r.Submit(second); err == nil {
		err = r.Wait(first)
		if !errors.Is(err, device.ErrLost) {
			t.Errorf("first: %v", err)
		}
		if err := r.Wait(second); !errors.Is(err, device.ErrLost) {
			t.Errorf("second: %v", err)
		}
	} else {
		t.Errorf("second: %v before the first has run", err)
	}
	r.close()
}

// TestOutOfMemoryAtEverySite fails each call of a whole life in turn, as the driver would: the error says what
// was out, nothing is left open, and the next attempt of the same call passes.
func TestOutOfMemoryAtEverySite(t *testing.T) {
	for _, movable := range []bool{true, false} {
		for n := 0; ; n++ {
			calls, hit := 0, ""
			dev, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: map[string]cuda.KernelFunc{"plus one": kernel}, Fault: func(s cuda.Site) cuda.Fault {
				switch s.Op {
				case "copy in", "copy out", "copy", "launch", "fill":
					return cuda.Fault{} // commands do not allocate
				}
				if calls++; calls == n+1 {
					hit = s.Op
					return cuda.Fault{Code: cuda.CodeOutOfMemory}
				}
				return cuda.Fault{}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := life(t, dev, movable); err != nil && !errors.Is(err, cuda.ErrOutOfMemory) || err == nil && hit != "" && hit != "register" && hit != "submit" {
				t.Errorf("movable %v, call %d (%s): %v", movable, n, hit, err)
			}
			if l := dev.Live(); l != (cuda.Live{}) {
				t.Errorf("movable %v, call %d (%s): left open: %+v", movable, n, hit, l)
			}
			if hit == "" {
				break
			}
		}
	}
}

// life opens, loads and runs, closes, and returns the first error. A load or a batch that fails is tried again.
func life(t *testing.T, dev *cuda.Device, movable bool) error {
	p := &plusOne{}
	e, err := New(dev, config(p, movable, 30*time.Second, dev))
	if err != nil {
		return err
	}
	r := &rig{Executor: e, t: t, model: testModel(t), prog: p}
	r.slots = devicetest.Slots(t, 4, device.SlotBytes([]*device.Model{r.model}))
	first := devicetest.Load(e, r.model, r.slots)
	if first != nil {
		if err := devicetest.Load(e, r.model, r.slots); err != nil {
			first = fmt.Errorf("load again: %v", err)
		}
	}
	for i := range 4 {
		r.fill(i%3, 0, byte(i))
		r.Arrived(r.model, r.slots[i%3], device.AllInputs, 0, 1)
		err := r.execute(i%3, 2)
		if err != nil {
			if again := r.execute(i%3, 2); again != nil {
				err = fmt.Errorf("again: %v", again)
			}
			first = joinErrors(first, err)
		}
		r.want(i%3, 0, byte(i))
	}
	return joinErrors(joinErrors(first, r.two()), e.Close())
}

// two has two batches under way, and offers again what was refused.
func (r *rig) two() (first error) {
	a, b := device.Batch{Model: r.model, Slot: r.slots[0], Rows: 1}, device.Batch{Model: r.model, Slot: r.slots[1], Rows: 1}
	for i := range 2 {
		r.fill(i, 0, byte(i))
	}
	submit := func(b device.Batch) bool {
		err := r.Submit(b)
		first = joinErrors(first, err)
		return err == nil
	}
	for range 2 {
		//lint:ignore SA4000 the second try may succeed where the first has failed
		if submit(a) || submit(a) {
			beside := submit(b)
			first = joinErrors(first, r.Wait(a))
			if beside || submit(b) {
				first = joinErrors(first, r.Wait(b))
			}
		}
		r.want(0, 0, 0)
		r.want(1, 0, 1)
	}
	return first
}

func TestAHungDeviceIsLostAndCloses(t *testing.T) {
	for _, op := range []string{"copy in", "launch", "copy out"} {
		armed := false
		r := open(t, cuda.Emulation{Fault: func(s cuda.Site) cuda.Fault { return cuda.Fault{Hang: armed && s.Op == op} }}, true)
		armed = true
		r.cfg.Timeout = 100 * time.Millisecond
		r.Arrived(r.model, r.slots[0], device.AllInputs, 0, 1)
		for s := range 2 {
			if err := r.Submit(device.Batch{Model: r.model, Slot: r.slots[s], Rows: 2}); err != nil {
				t.Fatal(err)
			}
		}
		for s := range 2 {
			if err := r.Wait(device.Batch{Model: r.model, Slot: r.slots[s], Rows: 2}); !errors.Is(err, device.ErrLost) || !errors.Is(err, cuda.ErrHung) {
				t.Errorf("%s: batch %d: %v", op, s, err)
			}
		}
		r.Abandon(r.model, r.slots[0])
		if err := r.Close(); !errors.Is(err, cuda.ErrHung) {
			t.Errorf("%s: close: %v", op, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := open(t, cuda.Emulation{Virtual: true}, false)
	defer r.close()
	if err := devicetest.Load(r, r.model, r.slots); err == nil || !strings.Contains(err.Error(), "loaded already") {
		t.Errorf("loaded twice: %v", err)
	}
	if err := device.Execute(r, device.Batch{Model: testModel(t), Slot: r.slots[0], Rows: 1}); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("an unknown model ran: %v", err)
	}
	if err := device.Execute(r, device.Batch{Model: r.model, Slot: device.NewSlot(9, nil), Rows: 1}); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("an unknown slot was used: %v", err)
	}
	for _, rows := range []int{0, 5, -1} {
		if err := r.execute(0, rows); err == nil || !strings.Contains(err.Error(), "want 1 to 4") {
			t.Errorf("a batch of %d ran: %v", rows, err)
		}
	}
	r.Arrived(testModel(t), r.slots[0], device.AllInputs, 0, 1) // ignored
	r.Abandon(r.model, device.NewSlot(9, nil))
}

func TestWarmPathAllocatesNothing(t *testing.T) {
	r := open(t, cuda.Emulation{}, true)
	defer r.close()
	batch := func() {
		r.Arrived(r.model, r.slots[0], device.AllInputs, 0, 2)
		r.Arrived(r.model, r.slots[0], device.AllInputs, 2, 3)
		if err := r.execute(0, 4); err != nil {
			t.Fatal(err)
		}
		r.Arrived(r.model, r.slots[1], device.AllInputs, 0, 2)
		r.Abandon(r.model, r.slots[1])
		two := [2]device.Batch{{Model: r.model, Slot: r.slots[0], Rows: 1}, {Model: r.model, Slot: r.slots[1], Rows: 2}}
		if err := joinErrors(r.Submit(two[0]), r.Submit(two[1])); err != nil {
			t.Fatal(err)
		}
		if err := joinErrors(r.Wait(two[0]), r.Wait(two[1])); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		batch()
	}
	if n := testing.AllocsPerRun(50, batch); n != 0 { // X3
		t.Errorf("%v allocations per batch", n)
	}
}
