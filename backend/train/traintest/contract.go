// Package traintest tests the contract of train.Stepper: every implementation computes the losses and weights that
// train.Trainer computes with ONNX Runtime.
package traintest

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/backend/ort"
	"downbeat.dev/backend/train"
)

// Open creates the Stepper under test.
type Open func(net train.Net, o train.Options) (train.Stepper, error)

const (
	batchSize = 4
	rate      = 0.01
	steps     = 8
)

// Contract tests a Stepper. stops says that its steps can stop between their layers.
func Contract(t *testing.T, open Open, stops bool) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, c contract)
	}{
		{"losses and weights are ONNX Runtime's", followsReference},
		{"a step that stops goes on", stopsAndGoesOn},
		{"a step that is given up leaves nothing", givesUp},
		{"other weights start without a history", startsAgain},
		{"a loss that is not a number is an error", notANumber},
		{"what does not fit is refused", refusals},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, contract{open, stops}) })
	}
}

type contract struct {
	open  Open
	stops bool
}

// nets have every kind of layer and head, and an early exit.
func nets() map[string]train.Net {
	body := []train.Layer{
		&train.Conv{Out: 4, K: 3, Stride: 2},
		&train.Residual{Body: []train.Layer{&train.Conv{Out: 3, K: 3, Stride: 1}, &train.Conv{Out: 4, K: 1, Stride: 1, Linear: true}}},
		&train.Conv{Out: 6, K: 3, Stride: 2}, &train.Flatten{}, &train.Dense{Out: 7}, &train.Dense{Out: 3, Linear: true}}
	classifier := train.Net{Name: "classifier", H: 8, W: 12, Head: train.Classes{N: 3}, Body: body}
	exits := classifier
	exits.Name, exits.Exits = "classifier with an exit", []train.Exit{{After: 2, Body: []train.Layer{&train.Flatten{}, &train.Dense{Out: 3, Linear: true}}}}
	detector := train.Net{Name: "detector", H: 16, W: 8, Head: train.Grid{N: 2}, Body: []train.Layer{
		&train.Conv{Out: 4, K: 3, Stride: 2}, &train.Conv{Out: 6, K: 5, Stride: 2}, &train.Conv{Out: 7, K: 1, Stride: 1, Linear: true}}}
	return map[string]train.Net{"classifier": classifier, "exits": exits, "detector": detector}
}

// newStepper opens a Stepper that ends with the test.
func newStepper(t *testing.T, open Open, n train.Net, o train.Options) train.Stepper {
	t.Helper()
	o.Batch = batchSize
	s, err := open(n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func onProcessor(n train.Net, o train.Options) (train.Stepper, error) { return train.New(n, o) }

// sample is a batch of random images and targets.
type sample struct {
	images  []byte
	targets []float32
}

func draw(n train.Net, r *rand.Rand) sample {
	s := sample{make([]byte, batchSize*n.H*n.W*3), make([]float32, batchSize*n.TargetLen())}
	for i := range s.images {
		s.images[i] = byte(r.IntN(256))
	}

	each := n.TargetLen()
	for b := range batchSize {
		target := s.targets[b*each : (b+1)*each]
		switch h := n.Head.(type) {
		case train.Classes:
			target[r.IntN(int(h.N))] = 1
		case train.Grid:
			// One object in a random cell, of a random class.
			cells := each / int(h.N+6)
			cell := r.IntN(cells)
			target[cell], target[(1+r.IntN(int(h.N)))*cells+cell] = 1, 1
			for k := range 4 {
				target[(1+int(h.N)+k)*cells+cell] = float32(r.NormFloat64())
			}
		}
	}
	return s
}

// stepWhole runs a step without a stop.
func stepWhole(t *testing.T, s train.Stepper, b sample) float32 {
	t.Helper()
	if err := s.Begin(b.images, b.targets, rate); err != nil {
		t.Fatal(err)
	}
	done, loss, err := s.Advance(0)
	if err != nil || !done {
		t.Fatalf("a step without a limit: done %v, %v", done, err)
	}
	return loss
}

// stepInParts runs a step with limits that are too short for it, and returns how often it stopped.
func stepInParts(t *testing.T, s train.Stepper, b sample) (loss float32, stopped int) {
	t.Helper()
	if err := s.Begin(b.images, b.targets, rate); err != nil {
		t.Fatal(err)
	}

	before := slices.Clone(s.Weights())
	for {
		done, loss, err := s.Advance(time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return loss, stopped
		}

		// Every call runs a layer, so that a step ends however short the limits are.
		if stopped++; stopped > 10_000 {
			t.Fatal("a step does not end")
		}
		if !slices.Equal(before, s.Weights()) {
			t.Fatal("a step that has not ended has other weights")
		}
	}
}

func followsReference(t *testing.T, c contract) {
	for name, n := range nets() {
		for _, o := range []train.Options{{Seed: 3}, {Seed: 4, Optimiser: train.Momentum}, {Seed: 5, HeadsOnly: true}} {
			if o.HeadsOnly && len(n.Exits) == 0 {
				continue
			}
			ours, reference := newStepper(t, c.open, n, o), newStepper(t, onProcessor, n, o)
			if !slices.Equal(ours.Weights(), reference.Weights()) {
				t.Errorf("%s, %+v: other initial weights", name, o)
			}

			r := rand.New(rand.NewPCG(1, 1))
			first := slices.Clone(ours.Weights())
			for i := range steps {
				b := draw(n, r)
				got, want := stepWhole(t, ours, b), stepWhole(t, reference, b)
				if d := math.Abs(float64(got - want)); !(d <= 1e-5*(1+math.Abs(float64(want)))) {
					t.Errorf("%s, %+v: step %d: loss %v, want %v", name, o, i, got, want)
				}
			}
			if slices.Equal(first, ours.Weights()) {
				t.Errorf("%s, %+v: the weights have not changed", name, o)
			}
			if d := distance(ours.Weights(), reference.Weights()); !(d <= 1e-5) {
				t.Errorf("%s, %+v: after %d steps a weight differs by %v", name, o, steps, d)
			}
		}
	}
}

// distance returns the largest difference; NaN if one is not a number.
func distance(a, b []float32) (most float64) {
	for i := range a {
		most = math.Max(most, math.Abs(float64(a[i]-b[i])))
	}
	return most
}

func stopsAndGoesOn(t *testing.T, c contract) {
	n := nets()["exits"]
	whole, parts := newStepper(t, c.open, n, train.Options{Seed: 6}), newStepper(t, c.open, n, train.Options{Seed: 6})
	r := rand.New(rand.NewPCG(2, 2))
	for i := range 3 {
		b := draw(n, r)
		want := stepWhole(t, whole, b)
		got, stopped := stepInParts(t, parts, b)
		if got != want || !slices.Equal(whole.Weights(), parts.Weights()) {
			t.Fatalf("step %d: loss %v in %d parts, %v at once; or other weights", i, got, stopped+1, want)
		}
		if stopped > 0 != c.stops || c.stops && stopped < 10 {
			t.Errorf("step %d: stopped %d times", i, stopped)
		}
	}
}
