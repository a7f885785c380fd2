package layered

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/train"
	"downbeat.dev/backend/train/traintest"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// openDevice opens a GPU if the tests require one, otherwise the emulated device.
func openDevice(t *testing.T, fault func(cuda.Site) cuda.Fault) *cuda.Device {
	t.Helper()
	if fault == nil && os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" {
		d, err := cuda.Open(cuda.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: kernels.Reference(), Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTrainerContract(t *testing.T) {
	d := openDevice(t, nil)
	traintest.Contract(t, func(n train.Net, o train.Options) (train.Stepper, error) { return NewTrainer(d, n, o) }, true)
	if err := d.Close(); err != nil || d.Live() != (cuda.Live{}) {
		t.Errorf("close: %v, live %+v", err, d.Live())
	}
}

// oneLayer is the smallest net that can be trained, and a batch of one image for it.
func oneLayer() (n train.Net, images []byte, targets []float32) {
	n = train.Net{Name: "one layer", H: 2, W: 2, Head: train.Classes{N: 2}, Body: []train.Layer{&train.Flatten{}, &train.Dense{Out: 2, Linear: true}}}
	return n, make([]byte, 2*2*3), []float32{1, 0}
}

// TestTrainerWithoutMemory fails each allocation of a trainer's life in turn: the error says so, and nothing stays open.
func TestTrainerWithoutMemory(t *testing.T) {
	n, images, targets := oneLayer()
	for k := 0; ; k++ {
		hit := ""
		d := openDevice(t, devicetest.OutOfMemoryAt(k, &hit))
		trainer, err := NewTrainer(d, n, train.Options{Batch: 1})
		if err == nil {
			if err = trainer.Begin(images, targets, 0.1); err == nil {
				_, _, err = trainer.Advance(0)
			}
			if err := trainer.Close(); err != nil {
				t.Errorf("call %d (%s): close: %v", k, hit, err)
			}
		}
		if err != nil && !errors.Is(err, cuda.ErrOutOfMemory) || err == nil && hit != "" && hit != "pin" {
			t.Errorf("call %d (%s): %v", k, hit, err)
		}
		if err := d.Close(); err != nil || d.Live() != (cuda.Live{}) {
			t.Errorf("call %d (%s): close: %v, live %+v", k, hit, err, d.Live())
		}
		if hit == "" {
			return
		}
	}
}

// TestTrainerOnALostDevice loses the device at each command of a step: the error says so, and nothing stays open.
func TestTrainerOnALostDevice(t *testing.T) {
	n, images, targets := oneLayer()
	for _, op := range []string{"submit", "copy in", "launch", "copy out"} {
		armed := false
		d := openDevice(t, func(s cuda.Site) cuda.Fault {
			if armed && s.Op == op {
				return cuda.Fault{Code: cuda.CodeDeviceUnavailable}
			}
			return cuda.Fault{}
		})
		trainer, err := NewTrainer(d, n, train.Options{Batch: 1, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(trainer.Weights())
		armed = true
		if err = trainer.Begin(images, targets, 0.1); err == nil {
			_, _, err = trainer.Advance(0)
		}
		if !errors.Is(err, cuda.ErrDeviceLost) || fmt.Sprint(trainer.Weights()) != before {
			t.Errorf("%s: %v, or other weights", op, err)
		}
		if err := errors.Join(trainer.Close(), d.Close()); err != nil || d.Live() != (cuda.Live{}) {
			t.Errorf("%s: close: %v, live %+v", op, err, d.Live())
		}
	}
}
