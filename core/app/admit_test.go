package app_test

import (
	"testing"
	"time"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// TestAnOfferIsTriedWithItsPhase shows that the trial sees the frame times of the offered lower rate.
func TestAnOfferIsTriedWithItsPhase(t *testing.T) {
	of, err := profile.Linear(time.Millisecond, time.Millisecond, 8)
	if err != nil {
		t.Fatal(err)
	}
	g := &app.Graph{Application: &app.Application{Name: "one"}, Tensors: []app.Tensor{{Tensor: model.Tensor{Name: "x"}, Most: 1, Mean: 1}},
		Steps: []app.Step{{Stage: &app.Stage{Name: "m", Model: "m"}, List: app.Single}}}
	p := app.Promise{Graph: g, Profiles: func(int) *profile.Profile { return of }, Rate: 20, Latency: 100 * time.Millisecond,
		PhaseOf: func(p *app.Promise) time.Duration { return p.Period() / 4 }}

	_, a, err := app.Admit(app.Capacity{GPUs: 1}, nil, p, func(_ app.Capacity, all []app.Promise) bool {
		if tried := all[0]; tried.Phase != tried.Period()/4 {
			t.Errorf("%v frames/s are tried at %v of their period, want a quarter of %v", tried.Rate, tried.Phase, tried.Period())
		}
		return all[0].Rate < 15
	})
	if err != nil || a.OfferRate < 5 || a.OfferRate > 10 {
		t.Errorf("%+v, %v; want half the rate offered", a, err)
	}
}
