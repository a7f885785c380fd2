package app_test

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/app"
)

// TestReadmitSacrificesByClaim shows that frames go before sessions, small claims before large ones, later sessions
// before earlier ones, and no more than needed.
func TestReadmitSacrificesByClaim(t *testing.T) {
	open := []app.Promise{
		{Rate: 10, Demand: 0.1},
		{Rate: 10, Demand: 0.1, Claim: 2, Least: 5},
		{Rate: 10, Demand: 0.1, Claim: 1},
		{Rate: 10, Demand: 0.1, Least: 4},
	}

	for most, want := range map[float64][]float64{
		40: {10, 10, 10, 10},
		34: {10, 10, 10, 4},
		33: {10, 5, 10, 4},
		29: {10, 5, 10, 4},
		28: {10, 5, 10, 0},
		20: {0, 5, 10, 0},
		9:  {0, 5, 0, 0},
		4:  {0, 0, 0, 0},
	} {
		trials := 0
		carries := func(c app.Capacity, all []app.Promise) bool {
			trials++
			sum, demand := 0.0, 0.0
			for i := range all {
				sum, demand = sum+all[i].Rate, demand+all[i].Demand
			}
			if d := demand - sum/100; d > 1e-9 || d < -1e-9 {
				t.Errorf("demand of %v at %v frames/s", demand, sum)
			}
			return sum <= most
		}
		got := ratesOf(app.Readmit(app.Capacity{GPUs: 4, Hop: time.Millisecond}, open, carries))
		if !slices.Equal(got, want) || trials > 4 {
			t.Errorf("at most %v frames/s: %v with %d trials, want %v with 4 at most", most, got, trials, want)
		}
	}

	// Demand alone decides without a trial, and no session stays if nothing is left.
	if got := ratesOf(app.Readmit(app.Capacity{GPUs: 1}, open, nil)); !slices.Equal(got, []float64{10, 10, 10, 10}) {
		t.Errorf("%v on a GPU of which 0.4 are asked for", got)
	}
	if got := ratesOf(app.Readmit(app.Capacity{}, open, nil)); slices.Max(got) > 0 {
		t.Errorf("%v without a GPU", got)
	}
	// Others' requests also take GPUs.
	if got := ratesOf(app.Readmit(app.Capacity{GPUs: 1, Measured: 1.4}, open, nil)); slices.Max(got) > 0 {
		t.Errorf("%v on a GPU that others use", got)
	}
}

func ratesOf(remains []app.Remains) (rates []float64) {
	for _, r := range remains {
		rates = append(rates, r.Rate)
	}
	return rates
}

// TestSlowedSessionsKeepApart: each session keeps one of five frames, and not all sessions the same one.
func TestSlowedSessionsKeepApart(t *testing.T) {
	open := make([]app.Promise, 5)
	for i := range open {
		open[i] = app.Promise{Rate: 10, Least: 2, Phase: 7 * time.Millisecond}
	}
	phases := map[time.Duration]bool{}
	none := func(_ app.Capacity, all []app.Promise) bool {
		return !slices.ContainsFunc(all, func(p app.Promise) bool { return p.Rate > 2 })
	}
	for _, r := range app.Readmit(app.Capacity{GPUs: 1}, open, none) {
		if (r.Phase-7*time.Millisecond)%(100*time.Millisecond) != 0 || r.Rate != 2 {
			t.Errorf("%+v, want a frame of the session's own", r)
		}
		phases[r.Phase%(500*time.Millisecond)] = true
	}
	if len(phases) != 5 {
		t.Errorf("%d of 5 phases", len(phases))
	}
}
