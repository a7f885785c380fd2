//go:build cgo && !race

package learn

import (
	"math"
	"testing"
	"time"

	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/train"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// TestStepsOnADevice: a learner whose steps run on a device, in parts, learns what one learns whose steps run on ONNX Runtime. The
// race detector makes the emulated device's arithmetic take minutes.
func TestStepsOnADevice(t *testing.T) {
	s := openStreet(t)
	d, err := cuda.OpenEmulated(cuda.Emulation{Kernels: kernels.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})

	const steps = 4
	samples := s.draw(100, dark())
	learnt := func(trainer func(train.Net, train.Options) (train.Stepper, error), limit time.Duration) (weights []float32, parts int) {
		l := s.learner(func(o *Options) { o.Trainer, o.Batch, o.Seed, o.Initial = trainer, 4, 5, samples })
		s.offer(l, 100)
		l.learning = true
		for l.Counts().Steps < steps {
			r, err := l.StepWithin(limit)
			if err != nil || r.Work != Training || r.Discarded != nil {
				t.Fatalf("%+v, %v", r, err)
			}
			if r.Unfinished {
				parts++
			}
			if r.Unfinished == (r.Inputs > 0) || r.Unfinished && l.Idle() {
				t.Fatalf("%+v, idle %v", r, l.Idle())
			}
		}
		if l.Counts().Stopped != parts {
			t.Errorf("%+v, want %d stops", l.Counts(), parts)
		}
		return l.candidate, parts
	}

	s.next = 1 << 22
	want, whole := learnt(nil, 0)
	s.next = 1 << 22 // the same samples
	got, parts := learnt(func(n train.Net, o train.Options) (train.Stepper, error) { return layered.NewTrainer(d, n, o) }, time.Millisecond)
	if whole != 0 || parts < 2*steps {
		t.Errorf("%d and %d parts, want 0, and %d or more", whole, parts, 2*steps)
	}
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > 1e-5 {
			t.Fatalf("weight %d: %v, want %v", i, got[i], want[i])
		}
	}
}
