package sim

import (
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// BenchmarkThirtySeconds simulates 30 s of 64 GPUs and the 37 models of the A100 zoo near their
// goodput, half a million requests.
func BenchmarkThirtySeconds(b *testing.B) {
	const span, rate = 30 * time.Second, 17_200
	zoo := profile.A100()
	w := &World{GPUs: 64}
	for _, e := range zoo {
		p, err := e.Profile()
		if err != nil {
			b.Fatal(err)
		}
		w.Models = append(w.Models, Model{Name: e.Name, Profile: p, SLO: Duration(e.SLO)})
	}
	w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(len(zoo)), rate*31).At(rate, span, nil)
	for b.Loop() {
		w.events, w.now = nil, 0
		w.Run(NewDownbeat(w))
	}
	b.ReportMetric(float64(len(w.Arrivals)), "requests/op")
}
