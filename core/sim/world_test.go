package sim

import (
	"reflect"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// TestWorldRunsTwice shows that a second Run with a new Server finds the world in its initial state.
func TestWorldRunsTwice(t *testing.T) {
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{Models: []Model{{Profile: p, SLO: 25e6}}, GPUs: 2, Arrivals: arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(1), 3000).At(1500, 1e9, nil)}
	first := *w.Run(NewDownbeat(w))
	if first.Batches == 0 || first.Bad[0] == 0 {
		t.Fatalf("%+v: want batches and an overload", first)
	}
	if again := *w.Run(NewDownbeat(w)); !reflect.DeepEqual(first, again) {
		t.Errorf("first %+v, then %+v", first, again)
	}
}

// TestOneMomentIsOneBurst shows that all requests of one moment are queued before any of them leaves, like a
// frontend's burst in the engine. Bursts that the GPUs can just carry fill their batches.
func TestOneMomentIsOneBurst(t *testing.T) {
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 20)
	if err != nil {
		t.Fatal(err)
	}
	const gpus, size, bursts = 8, 19, 100
	w := &World{Models: []Model{{Profile: p, SLO: 25e6}}, GPUs: gpus}
	for i := range bursts {
		for range gpus * size {
			w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: time.Duration(i) * 25e6})
		}
	}
	if r := w.Run(NewDownbeat(w)); r.Bad[0] != 0 {
		t.Errorf("%d of %d missed in %d batches, want none in %d", r.Bad[0], r.Total[0], r.Batches, gpus*bursts)
	}
}

// TestBurstsAtAnOverload: requests every 5 ms, a tenth more than the GPUs can carry, leave ResNet50's queue with an
// old head for which no batch can be as large as the load requires. Serving it with the largest possible window, and
// not with batches of five forever, keeps goodput up (§4.4: flat top).
func TestBurstsAtAnOverload(t *testing.T) {
	p, err := profile.Linear(1053*time.Microsecond, 5072*time.Microsecond, 64)
	if err != nil {
		t.Fatal(err)
	}
	const gpus, tick = 8, Time(5e6)
	held := 0.0
	for _, rate := range []float64{5000, 6300, 7500} {
		w := &World{Models: []Model{{Profile: p, SLO: 25e6}}, GPUs: gpus}
		due := 0.0
		for at := Time(0); at < 10e9; at += tick {
			for due += rate * float64(tick) / 1e9; due >= 1; due-- {
				w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: time.Duration(at)})
			}
		}
		r := w.Run(NewDownbeat(w))
		good := float64(r.Total[0]-r.Bad[0]) / 10
		t.Logf("offered %.0f r/s: %.0f in time", rate, good)
		if held = max(held, good); good < 0.95*held {
			t.Errorf("offered %.0f r/s: %.0f in time, less than the %.0f at a lower rate", rate, good, held)
		}
	}
}
