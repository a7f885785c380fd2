package sessions

import (
	"math/rand/v2"
	"testing"
)

// TestSessionsSurviveALostBackend samples the clusters of bench/results/sessions/kill.txt: with a backend to spare no session
// is evicted when one is killed under full load, and 99 % of the minute's frames are in time; without, those with the least
// claim go, and the rest is served.
func TestSessionsSurviveALostBackend(t *testing.T) {
	spared, full := Survival{FinishMin: 100}, Survival{FinishMin: 100}
	rng := rand.New(rand.NewPCG(5, 0))
	for spare, s := range []*Survival{&full, &spared} {
		if err := s.surviveLoss(rng, 4, 1, spare); err != nil {
			t.Fatal(err)
		}
		s.sumUp()
	}
	t.Logf("with one to spare %+v; without %+v", spared, full)
	if spared.Evicted > 0 || spared.FinishPct < 99 || spared.Broken > 1 || spared.Sessions < 3 {
		t.Errorf("with a backend to spare: %+v", spared)
	}
	if full.Evicted == 0 || full.FinishPct < 98 {
		t.Errorf("with every backend promised: %+v", full)
	}
}
