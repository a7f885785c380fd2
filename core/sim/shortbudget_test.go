package sim

import (
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// TestFlatTopWithShorterBudgets shows that requests whose budget is slightly below their model's SLO (a frontend's
// margin, the engine's overrun margin, the network) do not reduce goodput under overload.
func TestFlatTopWithShorterBudgets(t *testing.T) {
	p, err := profile.Linear(226*time.Microsecond, 387*time.Microsecond, 64)
	if err != nil {
		t.Fatal(err)
	}
	good := func(less Duration) int {
		w := &World{Models: []Model{{Name: "m", Profile: p, SLO: 8_885_000}}, GPUs: 4}
		w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(1), 36_000).At(32_000, 1e9, nil)
		s := NewDownbeat(w)
		w.Models[0].SLO -= less
		r := w.Run(s)
		return r.Total[0] - r.Bad[0]
	}
	full := good(0)
	for _, less := range []Duration{100e3, 200e3, 400e3, 800e3} {
		if g := good(less); g < full*9/10 {
			t.Errorf("%d answered in time with the SLO as budget, %d with %v ns less", full, g, less)
		}
	}
}
