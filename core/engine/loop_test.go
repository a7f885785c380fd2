package engine

import (
	"math/rand/v2"
	"testing"

	"downbeat.dev/core/sched"
)

// TestLoopLearnsHowLateSleepsEnd shows that the estimate follows the rare late sleeps up and down, but not delays
// that no timer causes.
func TestLoopLearnsHowLateSleepsEnd(t *testing.T) {
	const us = sched.Duration(1000)
	l := &Loop{}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		usual, rare sched.Duration
		share       float64 // of the rare late sleeps
		least, most sched.Duration
	}{
		{20 * us, 250 * us, 0.03, 200 * us, 300 * us},
		{20 * us, 250 * us, 0.0005, 15 * us, 60 * us},
		{5 * us, 5 * us, 0, 4 * us, 10 * us},
		{4000 * us, 4000 * us, 0, sched.Duration(lateMost), sched.Duration(lateMost)},
	} {
		sum := sched.Duration(0)
		for i := range 20_000 {
			late := c.usual + sched.Duration(rng.Int64N(2000))
			if rng.Float64() < c.share {
				late = c.rare
			}
			if l.learnLateness(late); i >= 15_000 {
				sum += l.late
			}
		}
		if mean := sum / 5000; mean < c.least || mean > c.most {
			t.Errorf("%.1f %% of the sleeps end %v late: learned %d ns, want %d to %d", 100*c.share, c.rare, mean, c.least, c.most)
		}
	}
}
