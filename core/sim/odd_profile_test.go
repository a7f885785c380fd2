package sim

import (
	"testing"

	"downbeat.dev/core/arrivals"
)

// TestSlowerOnTheBiggerGPU: profiles do not say which GPU is the bigger one, and published profiles have networks
// that take longer on it (GPT-2 on Proteus's V100). So such a profile is not refused but used. A family that takes
// four times as long on a kind that is three times as fast for the others is answered where it is fast, with its best
// variant, and keeps no other family off the fast GPUs.
func TestSlowerOnTheBiggerGPU(t *testing.T) {
	odd := drawFamily(t, "odd", 100e6, sizes(1, 4)...)
	w := &World{GPUs: 8, Kinds: []uint8{0, 0, 0, 0, 1, 1, 1, 1}, Models: []Model{odd,
		drawFamily(t, "a", 100e6, sizes(3, 1)...), drawFamily(t, "b", 100e6, sizes(3, 1)...), drawFamily(t, "c", 100e6, sizes(3, 1)...),
	}}
	w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(4), 12_000).At(2000, 5e9, nil)

	var byKind [4][2]float64
	best, bad := 0, 0
	w.Answered = func(gpu, model, variant int32, _, _ Time, requests []int32) {
		byKind[model][w.Kind(gpu)] += float64(len(requests))
		if variant == 2 {
			best += len(requests)
		}
	}
	w.Ended = func(_ int32, o Outcome, _ Time) {
		if o != Served {
			bad++
		}
	}
	w.Run(NewDownbeat(w))

	t.Logf("by kind %v, %d of %d with the best variant, %d bad", byKind, best, len(w.Arrivals), bad)
	for m, n := range byKind {
		quick := n[1]
		if m == 0 {
			quick = n[0]
		}
		if quick < 0.95*(n[0]+n[1]) {
			t.Errorf("model %d: %v requests by kind, want 95 %% where it is quick", m, n)
		}
	}
	if bad > 0 || float64(best) < 0.99*float64(len(w.Arrivals)) {
		t.Errorf("%d bad, %d of %d with the best variant: want none, and 99 %%", bad, best, len(w.Arrivals))
	}
}
