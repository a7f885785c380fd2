package accel

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/residency"
)

// TestABatchThatFailsLeavesTheOthersAlone: while a first batch is under way, a second is refused by its program, by
// the device for lack of memory, and by the device in the middle of its submission.
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

// TestALostDeviceLosesAllUnderWay: a sticky error hits with two batches under way.
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

// TestOutOfMemoryAtEverySite fails each call of a whole life in turn, as the driver would: the error says that memory
// was out, nothing stays open, and the next attempt of the same call passes.
func TestOutOfMemoryAtEverySite(t *testing.T) {
	for _, movable := range []bool{true, false} {
		for n := 0; ; n++ {
			hit := ""
			dev, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: map[string]cuda.KernelFunc{"plus one": kernel}, Fault: devicetest.OutOfMemoryAt(n, &hit)})
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

// life opens, loads, runs and closes, and returns the first error. It retries a failed load or batch.
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

// two has two batches under way, and submits refused ones again.
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
