package traintest

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/train"
)

func givesUp(t *testing.T, c contract) {
	n := nets()["classifier"]
	s, other := newStepper(t, c.open, n, train.Options{Seed: 7}), newStepper(t, c.open, n, train.Options{Seed: 7})
	r := rand.New(rand.NewPCG(3, 3))
	lost, b := draw(n, r), draw(n, r)

	// A step that cannot stop would end here, so it is not advanced.
	if err := s.Begin(lost.images, lost.targets, rate); err != nil {
		t.Fatal(err)
	}

	if c.stops {
		if done, _, err := s.Advance(time.Nanosecond); done || err != nil {
			t.Fatalf("done %v, %v", done, err)
		}
	}

	got, want := stepWhole(t, s, b), stepWhole(t, other, b)
	if got != want || !slices.Equal(s.Weights(), other.Weights()) {
		t.Errorf("after a step that was given up: loss %v, want %v; or other weights", got, want)
	}
}

func startsAgain(t *testing.T, c contract) {
	n := nets()["classifier"]
	s := newStepper(t, c.open, n, train.Options{Seed: 8})
	first, b := slices.Clone(s.Weights()), draw(n, rand.New(rand.NewPCG(4, 4)))
	loss := stepWhole(t, s, b)
	stepWhole(t, s, b)
	stepWhole(t, s, b)
	if err := s.SetWeights(first); err != nil || !slices.Equal(s.Weights(), first) {
		t.Fatalf("set: %v, or other weights", err)
	}

	if again := stepWhole(t, s, b); again != loss {
		t.Errorf("loss %v, at first %v", again, loss)
	}

	fresh := newStepper(t, c.open, n, train.Options{Weights: first})
	stepWhole(t, fresh, b)
	if !slices.Equal(s.Weights(), fresh.Weights()) {
		t.Error("weights that were set learn another thing than first ones")
	}
}

func notANumber(t *testing.T, c contract) {
	n := nets()["classifier"]
	s := newStepper(t, c.open, n, train.Options{Seed: 9})
	good, b := slices.Clone(s.Weights()), draw(n, rand.New(rand.NewPCG(5, 5)))
	bad := slices.Clone(good)
	bad[len(bad)-1] = float32(math.NaN())
	if err := s.SetWeights(bad); err != nil {
		t.Fatal(err)
	}

	// The step ends all the same: its caller sets other weights.
	if err := s.Begin(b.images, b.targets, rate); err != nil {
		t.Fatal(err)
	}

	if done, loss, err := s.Advance(0); !done || loss == loss || err == nil || !strings.Contains(err.Error(), "not a number") {
		t.Errorf("done %v, loss %v, %v", done, loss, err)
	}

	if err := s.SetWeights(good); err != nil {
		t.Fatal(err)
	}
	if loss := stepWhole(t, s, b); loss != loss {
		t.Error("good weights do not repair it")
	}
}

func refusals(t *testing.T, c contract) {
	n := nets()["classifier"]
	s := newStepper(t, c.open, n, train.Options{Seed: 10})
	b := draw(n, rand.New(rand.NewPCG(6, 6)))
	if err := s.Begin(b.images[1:], b.targets, rate); err == nil || !strings.Contains(err.Error(), "image bytes") {
		t.Errorf("a batch that lacks a byte: %v", err)
	}

	if _, _, err := s.Advance(0); err == nil || !strings.Contains(err.Error(), "no step was begun") {
		t.Errorf("a step that nobody began: %v", err)
	}

	if err := s.SetWeights(s.Weights()[1:]); err == nil || !strings.Contains(err.Error(), "weights: ") {
		t.Errorf("too few weights: %v", err)
	}

	// The options are checked before anything is opened.
	for _, o := range []train.Options{{}, {Batch: 1, HeadsOnly: true}, {Batch: 1, Weights: []float32{1}}} {
		if s, err := c.open(n, o); err == nil {
			t.Errorf("%+v was taken", o)
			s.Close()
		}
	}
}
