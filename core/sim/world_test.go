package sim

import (
	"reflect"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestWorldRunsTwice: a second Run with a new Server finds the world as the first did.
func TestWorldRunsTwice(t *testing.T) {
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{Models: []Model{{Profile: p, SLO: 25e6}}, GPUs: 2, Arrivals: NewUnit(1, Poisson, Even(1), 3000).At(1500, 1e9, nil)}
	first := *w.Run(NewDownbeat(w))
	if first.Batches == 0 || first.Bad[0] == 0 {
		t.Fatalf("%+v: want batches and an overload", first)
	}
	if again := *w.Run(NewDownbeat(w)); !reflect.DeepEqual(first, again) {
		t.Errorf("first %+v, then %+v", first, again)
	}
}

// TestOneMomentIsOneBurst: requests that come in one moment are all queued before any of them leaves, as
// a frontend's burst is in the engine. Bursts that the GPUs just hold fill their batches.
func TestOneMomentIsOneBurst(t *testing.T) {
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 20)
	if err != nil {
		t.Fatal(err)
	}
	const gpus, size, bursts = 8, 19, 100
	w := &World{Models: []Model{{Profile: p, SLO: 25e6}}, GPUs: gpus}
	for i := range bursts {
		for range gpus * size {
			w.Arrivals = append(w.Arrivals, Arrival{At: Time(i) * 25e6})
		}
	}
	if r := w.Run(NewDownbeat(w)); r.Bad[0] != 0 {
		t.Errorf("%d of %d missed in %d batches, want none in %d", r.Bad[0], r.Total[0], r.Batches, gpus*bursts)
	}
}
