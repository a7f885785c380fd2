package plan

import (
	"fmt"
	"time"

	"downbeat.dev/core/profile"
)

// CheckSize reports what is wrong with a Sizing. It tries every batch on that number of GPUs, and on one GPU fewer,
// by the equations as printed.
func CheckSize(p *profile.Profile, slo time.Duration, rate float64, targets Targets, s Sizing) error {
	capacity := func(n int) (most float64) {
		for b := 1; b <= p.Max(); b++ {
			if (1+1/float64(n))*float64(p.Exec(b)) < float64(slo) {
				most = max(most, targets.At(n)*float64(n)*float64(b)/p.Exec(b).Seconds())
			}
		}
		return most
	}

	// Enough GPUs, and not one too many.
	const rounding = 1e-9
	if got := capacity(s.GPUs); rate > 0 && got < rate*(1-rounding) {
		return fmt.Errorf("%d GPUs carry %v requests/s, not %v", s.GPUs, got, rate)
	}
	if fewer := s.GPUs - 1; fewer > 0 && capacity(fewer) >= rate*(1+rounding) {
		return fmt.Errorf("%d GPUs are enough, not %d", fewer, s.GPUs)
	}
	return nil
}
