package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// drawWorld draws families on GPUs of several kinds, at any load.
func drawWorld(t *testing.T, seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 4))
	w := &World{GPUs: 1 + r.IntN(12), Ctrl: Duration(r.IntN(300_000)), Data: Duration(r.IntN(10_000))}
	kinds := 1 + r.IntN(3)
	for range w.GPUs {
		w.Kinds = append(w.Kinds, uint8(r.IntN(kinds)))
	}

	for i := range 1 + r.IntN(5) {
		m := Model{Name: fmt.Sprint("f", i), SLO: Duration(20e6 + r.Int64N(180e6))}
		for k := range 1 + r.IntN(4) {
			v := Variant{Name: fmt.Sprint("v", k), Accuracy: 0.5 + 0.1*float64(k) + 0.05*r.Float64(), Profiles: make([]*profile.Profile, kinds)}
			for kind := range kinds {
				if kind > 0 && r.IntN(4) == 0 {
					continue // it does not run on that kind
				}
				slow := time.Duration((1 + k) * (1 + kind))
				p, err := profile.Linear(slow*time.Duration(50_000+r.IntN(400_000)), slow*time.Duration(200_000+r.IntN(1_000_000)), 1+r.IntN(64))
				if err != nil {
					t.Fatal(err)
				}
				v.Profiles[kind] = p
			}
			m.Variants = append(m.Variants, v)
		}
		if r.IntN(2) == 0 {
			m.Floor = m.Variants[r.IntN(len(m.Variants))].Accuracy
		}
		w.Models = append(w.Models, m)
	}

	rate := []float64{50, 500, 3000, 20_000}[r.IntN(4)]
	share := arrivals.Zipf(len(w.Models), r.Float64())
	w.Arrivals = arrivals.NewUnit(seed, arrivals.Gaps{Shape: 0.1 + r.Float64()}, share, rate*1.2+500).At(rate, time.Second, nil)
	return w
}

// TestFamilySwarm: whatever the families, the kinds of GPUs and the load, each request ends once, no answer is below
// its family's floor (V1, which World checks), and a run repeats. Over the seeds there are answers of the best
// variant and of others, on every kind, and requests without an answer because of a floor.
func TestFamilySwarm(t *testing.T) {
	best, lower, dropped, kinds := 0, 0, 0, map[int]int{}
	for seed := uint64(1); seed <= 60; seed++ {
		w := drawWorld(t, seed)
		w.Answered = func(gpu, model, variant int32, start, finish Time, requests []int32) {
			m := &w.Models[model]
			kinds[w.Kind(gpu)] += len(requests)
			if int(variant) == len(m.Variants)-1 {
				best += len(requests)
			} else {
				lower += len(requests)
			}
		}
		w.Ended = func(r int32, o Outcome, at Time) {
			if o == Dropped && w.Models[w.Arrivals[r].Model].Floor > w.Models[w.Arrivals[r].Model].Variants[0].Accuracy {
				dropped++
			}
		}

		first := *w.Run(NewDownbeat(w))
		w.Answered, w.Ended = nil, nil
		if again := w.Run(NewDownbeat(w)); again.Batches != first.Batches || again.Busy != first.Busy || again.End != first.End {
			t.Errorf("seed %d: first %+v, then %+v", seed, first, *again)
		}
	}

	t.Logf("answers: %d of the best variant, %d of others, by kind %v; %d dropped above a floor", best, lower, kinds, dropped)
	if best == 0 || lower == 0 || dropped == 0 || kinds[0] == 0 || kinds[1] == 0 || kinds[2] == 0 {
		t.Error("the seeds do not see every case")
	}
}
