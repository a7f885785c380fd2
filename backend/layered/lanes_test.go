package layered

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/train"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/residency"
)

// openAnyLanes opens lanes of a GPU if the tests require one, otherwise of the emulated device.
func openAnyLanes(t *testing.T, lanes int) (all []device.Executor) {
	t.Helper()
	config := Config{Timeout: patient, DeviceBytes: 4 << 20}
	var opened []*Executor
	var err error
	if os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" {
		opened, err = OpenLanes(0, config, lanes)
	} else {
		opened, err = NewLanes(emulatedDevice(t, nil), config, lanes)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range opened {
		all = append(all, e)
	}
	return all
}

func emulatedDevice(t *testing.T, fault func(cuda.Site) cuda.Fault) *cuda.Device {
	t.Helper()
	dev, err := cuda.OpenEmulated(cuda.Emulation{MemoryBytes: 8 << 20, Kernels: kernels.Reference(), Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestLaneContract: a lane does what a device does, while another lane runs batches of a model that is updated, unloaded
// and loaded beside it.
func TestLaneContract(t *testing.T) {
	c := contractCase(t)
	c.Open = func(t *testing.T) device.Executor { return c.AmongLanes(t, openAnyLanes(t, 2)) }
	devicetest.Contract(t, c)
}

// TestLanesAreEqualParts: each lane tells its part of the memory and a kind that is no whole device's, and the last lane
// that is closed closes the device.
func TestLanesAreEqualParts(t *testing.T) {
	dev := emulatedDevice(t, nil)
	all, err := NewLanes(dev, Config{}, 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if c := e.Capabilities(); c.Kind != "emulated/lanes-4" || c.Memory != 2<<20 {
			t.Errorf("kind %q with %d bytes, want emulated/lanes-4 with %d", c.Kind, c.Memory, 2<<20)
		}
		if _, _, err := dev.MemoryInfo(); err != nil {
			t.Errorf("with a lane open: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := dev.MemoryInfo(); !errors.Is(err, cuda.ErrClosed) {
		t.Errorf("with all lanes closed: %v, want %v", err, cuda.ErrClosed)
	}
}

// TestALaneTooSmallForAModelNamesBoth: a model that fits on the device, and not on a quarter of it, is refused with the
// sizes of both.
func TestALaneTooSmallForAModelNamesBoth(t *testing.T) {
	for _, lanes := range []int{1, 8} {
		all, err := NewLanes(emulatedDevice(t, nil), Config{DeviceBytes: 16 << 10}, lanes)
		if err != nil {
			t.Fatal(err)
		}
		m := wide(t, 48)
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		err = devicetest.Load(all[0], m, slots)
		switch {
		case lanes == 1 && err != nil:
			t.Errorf("on the whole device: %v", err)
		case lanes == 8 && (!errors.Is(err, residency.ErrDoesNotFit) || !strings.Contains(err.Error(), "each of 8 lanes has 2 KiB for models")):
			t.Errorf("on a lane: %v", err)
		}
		for _, e := range all {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestNoLaneIsLeftOpen: whichever call fails while lanes are opened, nothing stays open.
func TestNoLaneIsLeftOpen(t *testing.T) {
	for n := 0; ; n++ {
		hit := ""
		dev := emulatedDevice(t, devicetest.OutOfMemoryAt(n, &hit))
		all, err := NewLanes(dev, Config{DeviceBytes: 1 << 20}, 3)
		if hit != "" && hit != "register" && !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("site %d %s: %v", n, hit, err)
		}
		for _, e := range all {
			if err := e.Close(); err != nil {
				t.Errorf("site %d %s: close: %v", n, hit, err)
			}
		}
		if l := dev.Live(); l != (cuda.Live{}) {
			t.Errorf("site %d %s: left open: %+v", n, hit, l)
		}
		if hit == "" {
			return
		}
	}
}

// TestALostDeviceTakesEveryLane: after one lane has found the device lost, each other one says so at its next batch.
func TestALostDeviceTakesEveryLane(t *testing.T) {
	armed := false
	dev := emulatedDevice(t, func(s cuda.Site) cuda.Fault {
		if armed && s.Op == "copy in" {
			return cuda.Fault{Code: cuda.CodeDeviceUnavailable}
		}
		return cuda.Fault{}
	})
	all, err := NewLanes(dev, Config{Timeout: 2 * time.Second}, 2)
	if err != nil {
		t.Fatal(err)
	}
	m := twice(t)
	batches := make([]device.Batch, len(all))
	for i, e := range all {
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		batches[i] = device.Batch{Model: m, Slot: slots[0], Rows: 2}
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
	}

	armed = true
	err = device.Execute(all[0], batches[0])
	armed = false
	if other := device.Execute(all[1], batches[1]); !errors.Is(err, device.ErrLost) || !errors.Is(other, device.ErrLost) {
		t.Errorf("the lane that found it: %v; the other: %v; want both lost", err, other)
	}
	for _, e := range all {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// TestALaneTrains: a trainer on one lane runs its steps while another lane serves, and takes none of the lanes' memory.
func TestALaneTrains(t *testing.T) {
	c := contractCase(t)
	all := openAnyLanes(t, 2)
	n, images, targets := oneLayer()
	trainer, err := all[0].(*Executor).NewTrainer(n, train.Options{Batch: 1})
	if err != nil {
		t.Fatal(err)
	}

	serving := c.AmongLanes(t, all)
	for step := range 20 {
		if err := trainer.Begin(images, targets, 0.1); err != nil {
			t.Fatal(err)
		}
		if done, _, err := trainer.Advance(0); !done || err != nil {
			t.Fatalf("step %d: done %v, %v", step, done, err)
		}
	}
	if held := serving.Memory().DeviceBytes; held != 0 {
		t.Errorf("the lane that trains holds %d bytes of models", held)
	}
	if err := errors.Join(trainer.Close(), serving.Close()); err != nil {
		t.Error(err)
	}
}
