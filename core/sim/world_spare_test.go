package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// withLearners gives a drawn World learners, and for every other seed faults: steps that overrun or whose end is not
// reported, and GPUs that are lost during a step.
func withLearners(w *World, seed uint64) (faulty bool) {
	r := rand.New(rand.NewPCG(seed, 5))
	faulty = seed%2 == 0
	w.Learners, w.Losses = nil, nil
	for i := range 1 + r.IntN(3) {
		l := &Learner{Step: Duration(0.5e6 + r.Float64()*9.5e6), Shortest: 0.1 + 0.9*r.Float64(), Weight: 0.5 + r.Float64(), Seed: seed<<8 + uint64(i)}
		if faulty {
			l.Overruns, l.Untold = 0.05*r.Float64(), 0.01*r.Float64()
		}
		w.Learners = append(w.Learners, l)
	}
	w.LearnShare = plan.LearnShareMost * r.Float64() * r.Float64()

	if faulty && w.GPUs > 1 {
		for range r.IntN(6) {
			w.Losses = append(w.Losses, Loss{At: Time(r.Int64N(1e9)), GPU: int32(1 + r.IntN(w.GPUs-1)), Away: Duration(1 + r.Int64N(200e6))})
		}
	}
	return faulty
}

// TestSpareSwarm: V2. Whatever the families, kinds of GPUs, load and learners, no batch is planned into a step (World
// panics), a batch begins late behind a step only if the step overran, and learners cost hardly any request its
// answer. A silent learner gets no further step, and its GPUs stay in use. A run repeats.
func TestSpareSwarm(t *testing.T) {
	var sum, healthy SpareResult
	lost, requests, worse := uint64(0), 0, 0
	for seed := uint64(1); seed <= 80; seed++ {
		w := drawWorld(t, seed)
		off := *w.Run(NewDownbeat(w))

		w = drawWorld(t, seed)
		faulty := withLearners(w, seed)
		d := NewDownbeat(w)
		on := *w.Run(d)
		stats := d.Scheduler().SpareStats()
		lost += stats.Lost
		sum.add(&on.Spare)

		if on.Spare.Delayed > on.Spare.Overran {
			t.Errorf("seed %d: %d batches late behind %d steps that overran", seed, on.Spare.Delayed, on.Spare.Overran)
		}
		if most := len(w.Learners) * len(d.gpus) * w.GPUs; on.Spare.Untold > most {
			t.Errorf("seed %d: %d steps without an end, want at most %d: those that ran when the first was missed", seed, on.Spare.Untold, most)
		}
		if !faulty {
			healthy.add(&on.Spare)
			asked, without, with := 0, 0, 0
			for m := range on.Total {
				asked, without, with = asked+on.Total[m], without+off.Bad[m], with+on.Bad[m]
			}

			// In an overload, steps change which requests are lost, by hundreds in either direction.
			if without*20 <= asked {
				requests, worse = requests+asked, worse+with-without
			}
			if stats.Lost+stats.Overrun > 0 || on.Spare.Delayed > 0 {
				t.Errorf("seed %d: faults where there are none: %+v, %+v", seed, stats, on.Spare)
			}
		}

		if again := *w.Run(NewDownbeat(w)); again.Busy != on.Busy || again.Spare.Time != on.Spare.Time || again.End != on.End {
			t.Errorf("seed %d: first %+v, then %+v", seed, on.Spare, again.Spare)
		}
	}

	t.Logf("all %+v\nwithout faults %+v, %d requests, %d more bad than without learners", sum, healthy, requests, worse)
	if healthy.Kept*1000 > requests || worse*1000 > requests {
		t.Errorf("of %d requests %d ended badly while a step ran, %d more than without learners; want at most one in a thousand", requests, healthy.Kept, worse)
	}
	if sum.Steps == 0 || sum.Overran == 0 || sum.Untold == 0 || sum.LostGPUs == 0 || sum.Delayed == 0 || lost == 0 {
		t.Errorf("the seeds do not see every fault: %+v, %d lost", sum, lost)
	}
}

func (r *SpareResult) add(x *SpareResult) {
	r.Steps += x.Steps
	r.Time += x.Time
	r.Overran += x.Overran
	r.Untold += x.Untold
	r.LostGPUs += x.LostGPUs
	r.Delayed += x.Delayed
	r.Kept += x.Kept
}

// drawPlainWorld draws models without variants on GPUs of one kind, with SLOs of 1.2 to 4 times ℓ(8), and Poisson
// arrivals at 0.3 to 0.95 of the GPUs' capacity with batches of eight.
func drawPlainWorld(t *testing.T, seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 6))
	w := &World{GPUs: 2 + r.IntN(15), Ctrl: Duration(r.IntN(300_000)), Data: Duration(r.IntN(5_000))}
	cost := 0.0
	n := 1 + r.IntN(12)
	for i := range n {
		p, err := profile.Linear(time.Duration(300_000+r.IntN(2_000_000)), time.Duration(1_000_000+r.IntN(8_000_000)), 32)
		if err != nil {
			t.Fatal(err)
		}
		cost += p.Exec(8).Seconds() / 8 / float64(n)
		w.Models = append(w.Models, Model{Name: fmt.Sprint("m", i), Profile: p, SLO: Duration(float64(p.Exec(8)) * (1.2 + 2.8*r.Float64()))})
	}
	rate := (0.3 + 0.65*r.Float64()) * float64(w.GPUs) / cost
	w.Arrivals = arrivals.NewUnit(seed, arrivals.Poisson, arrivals.Even(n), rate*2.4+500).At(rate, 2*time.Second, nil)
	return w
}

// TestSpareKeepsNobodyWaiting: V2 with tight SLOs. Of 10,000 requests at most two end badly while a step runs, and
// goodput is at least 0.997 of the goodput without learners.
func TestSpareKeepsNobodyWaiting(t *testing.T) {
	kept, requests, good, goodOff, used := 0, 0, 0, 0, Duration(0)
	for seed := uint64(1); seed <= 40; seed++ {
		w := drawPlainWorld(t, seed)
		off := *w.Run(NewDownbeat(w))
		w.Learners = []*Learner{{Step: Duration(1e6 * (1 + seed%10)), Shortest: 0.8, Seed: seed}}
		on := w.Run(NewDownbeat(w))

		kept += on.Spare.Kept
		used += on.Spare.Time
		for m := range on.Total {
			requests += on.Total[m]
			good += on.Total[m] - on.Bad[m]
			goodOff += off.Total[m] - off.Bad[m]
		}
	}

	t.Logf("%d requests, %d answered in time, %d without learners; %d ended badly while a step ran; %v of steps", requests, good, goodOff, kept, time.Duration(used))
	if kept*10_000 > 2*requests || float64(good) < 0.997*float64(goodOff) || used < 20e9 {
		t.Error("learners keep requests waiting, or do nothing")
	}
}
