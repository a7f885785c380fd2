package sessions

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"

	"downbeat.dev/bench/usage"
	"downbeat.dev/core/app"
	"downbeat.dev/core/sim"
)

// TestAdmissionAgreesWithTheEnd samples the mixes of bench/results/sessions/admission.txt.
func TestAdmissionAgreesWithTheEnd(t *testing.T) {
	const mixes = 12
	j, err := JudgeAdmission(context.Background(), mixes, 7)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", j)
	if j.Admitted+j.Refused != mixes || j.Admitted < mixes/4 || j.Refused < 1 {
		t.Errorf("%d admitted, %d refused of %d, want a good part of each", j.Admitted, j.Refused, mixes)
	}
	if j.WronglyAdmitted > 1 || j.WronglyRefused > 2 {
		t.Errorf("%d wrongly admitted, %d wrongly refused of %d, want at most 1 and 2", j.WronglyAdmitted, j.WronglyRefused, mixes)
	}
}

// TestOffersAreKept: what a refusal offers is admitted when it is asked for, and takes two trials at most beside the decision's.
func TestOffersAreKept(t *testing.T) {
	var j Judgement
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 281))
		c := app.Capacity{GPUs: 1 + rng.IntN(3), Hop: hop}
		all, err := drawMix(rng, c)
		if err != nil {
			t.Fatal(err)
		}
		open, last := all[:len(all)-1], all[len(all)-1]

		trials := 0
		_, a, err := app.Admit(c, open, last, func(c app.Capacity, all []app.Promise) bool {
			trials++
			return sim.Trial(c, all)
		})
		if err != nil || trials > 3 {
			t.Fatalf("seed %d: %d trials, %v; want 3 at most", seed, trials, err)
		}
		if a.Admitted {
			continue
		}
		if err := j.askForOffers(c, open, last, a); err != nil {
			t.Fatal(err)
		}
	}
	if j.Offers < 10 || j.BrokenOffers > 0 {
		t.Errorf("%d of %d offers were refused when asked for, want 10 offers or more and none broken", j.BrokenOffers, j.Offers)
	}
}

// BenchmarkDecision is admission's for the thirtieth session on fourteen GPUs.
func BenchmarkDecision(b *testing.B) {
	c := app.Capacity{GPUs: 14, Hop: hop}
	rng := rand.New(rand.NewPCG(1, 1))
	var open []app.Promise
	for len(open) < 30 {
		all, err := drawMix(rng, app.Capacity{GPUs: 1, Hop: hop})
		if err != nil {
			b.Fatal(err)
		}
		if p, a, err := app.Admit(c, open, all[0], sim.Trial); err == nil && a.Admitted {
			open = append(open, p)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := usage.ThreadTime()
	for b.Loop() {
		if _, a, err := app.Admit(c, open[:29], open[29], sim.Trial); err != nil || !a.Admitted {
			b.Fatal(a.Refusal, err)
		}
	}
	b.ReportMetric(float64(usage.ThreadTime()-began)/1e6/float64(b.N), "processor-ms/op")
}
