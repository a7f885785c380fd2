package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// twoKinds is a World of eight GPUs of each of two kinds, and four services that all of them can serve. ℓ(b) is as
// Symphony publishes it for the GTX 1080 Ti and the A100.
func twoKinds(t *testing.T) *World {
	t.Helper()
	w := &World{GPUs: 16}
	for g := range w.GPUs {
		w.Kinds = append(w.Kinds, uint8(g/8))
	}
	for _, m := range []struct {
		name     string
		old, new [2]time.Duration // ℓ(b) = first·b + second, in µs
		slo      time.Duration
	}{
		{"MobileNetV3Large", [2]time.Duration{820, 5256}, [2]time.Duration{196, 4072}, 15},
		{"ResNet152V2", [2]time.Duration{3471, 13049}, [2]time.Duration{589, 10054}, 50},
		{"EfficientNetB4", [2]time.Duration{12088, 4412}, [2]time.Duration{2881, 4103}, 100},
		{"SSDMobilenet", [2]time.Duration{23778, 9729}, [2]time.Duration{19448, 4442}, 300},
	} {
		best := Variant{Name: m.name, Accuracy: 1}
		for _, x := range [][2]time.Duration{m.old, m.new} {
			p, err := profile.Linear(x[0]*time.Microsecond, x[1]*time.Microsecond, 64)
			if err != nil {
				t.Fatal(err)
			}
			best.Profiles = append(best.Profiles, p)
		}
		w.Models = append(w.Models, Model{Name: m.name, SLO: Duration(m.slo * time.Millisecond), Variants: []Variant{best}})
	}
	return w
}

// ask draws Poisson arrivals of each model between two times, in requests/s.
func (w *World) ask(seed uint64, from, until time.Duration, rates ...float64) {
	for i, rate := range rates {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		for at := from; ; {
			if at += time.Duration(rng.ExpFloat64() / rate * 1e9); at >= until {
				break
			}
			w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: at, Model: int32(i)})
		}
	}
	slices.SortStableFunc(w.Arrivals, func(a, b arrivals.Arrival) int { return int(a.At - b.At) })
}

// TestHomesOnTwoKindsDoNotCollapse shows that services with GPUs of two kinds keep their batches large while the GPUs
// can carry the load, and have large batches again after an overload.
func TestHomesOnTwoKindsDoNotCollapse(t *testing.T) {
	unit := []float64{3000, 1500, 500, 180}
	times := func(x float64) (rates []float64) {
		for _, u := range unit {
			rates = append(rates, x*u)
		}
		return rates
	}
	for name, c := range map[string]struct {
		load, burst float64
	}{"steady": {1.7, 1.7}, "burst": {1.3, 2.6}} {
		w := twoKinds(t)
		w.ask(1, 0, time.Second, times(c.load)...)
		w.ask(2, time.Second, 2*time.Second, times(c.burst)...)
		w.ask(3, 2*time.Second, 6*time.Second, times(c.load)...)

		// Count the requests that arrive after the burst.
		const settled = 3 * time.Second
		asked, bad, batches, batched := 0, 0, 0, 0
		w.Ended = func(r int32, o Outcome, at Time) {
			if w.Arrivals[r].At < settled {
				return
			}
			if asked++; o != Served {
				bad++
			}
		}
		w.Answered = func(gpu, model, _ int32, start, _ Time, requests []int32) {
			if model == 1 && gpu >= 8 && start >= Time(settled) {
				batches, batched = batches+1, batched+len(requests)
			}
		}
		r := w.Run(NewDownbeat(w))
		busy := float64(r.Busy) / float64(w.GPUs) / float64(r.End)
		t.Logf("%s: %d of %d lost, batches of %.1f, GPUs busy for %.2f of the time", name, bad, asked, float64(batched)/float64(max(1, batches)), busy)
		if bad*100 > asked || batched < 20*batches {
			t.Errorf("%s: %d of %d requests lost, the fast GPUs' batches are of %.1f: want 1 %% and 20", name, bad, asked, float64(batched)/float64(max(1, batches)))
		}
	}
}
