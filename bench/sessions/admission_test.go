package sessions

import (
	"context"
	"math/rand/v2"
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
	began := usage.ProcessorTime()
	for b.Loop() {
		if _, a, err := app.Admit(c, open[:29], open[29], sim.Trial); err != nil || !a.Admitted {
			b.Fatal(a.Refusal, err)
		}
	}
	b.ReportMetric(float64(usage.ProcessorTime()-began)/1e6/float64(b.N), "processor-ms/op")
}
