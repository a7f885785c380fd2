package plan

import (
	"errors"
	"fmt"
	"time"
)

// CheckAdmission reports a promise, made or offered, that its budgets do not keep or whose demand does not fit.
func CheckAdmission(s Session, used, capacity []float64, a Admission) error {
	check := func(rate float64, latency time.Duration, b StageBudgets) error {
		if err := CheckSplit(s.App, rate, latency, b); err != nil {
			return err
		}
		// Sum the demand from the batches: a checker must not trust the plan's own sum.
		for k := range capacity {
			demand := 0.0
			for j, stage := range s.App.Stages {
				if stage.Profile != nil && stage.Kind == k {
					demand += rate * stage.FanOut * stage.Profile.Exec(b.Batch[j]).Seconds() / float64(b.Batch[j])
				}
			}
			if demand > 1e-12 && demand+used[k] > capacity[k]*(1+1e-9) {
				return fmt.Errorf("kind %d: %v GPUs beside %v of %v", k, demand, used[k], capacity[k])
			}
		}
		return nil
	}

	switch {
	case a.Admitted:
		return check(s.Rate, s.Latency, a.Budgets)
	case a.Refusal == nil:
		return errors.New("refused without a reason")
	case a.OfferRate > s.Rate || a.OfferLatency > 0 && a.OfferLatency < s.Latency:
		return fmt.Errorf("%v frames/s and %v are offered, %v and %v were asked for", a.OfferRate, a.OfferLatency, s.Rate, s.Latency)
	}

	if a.OfferRate > 0 {
		if err := check(a.OfferRate, s.Latency, a.RateBudgets); err != nil {
			return fmt.Errorf("offered rate: %w", err)
		}
	}
	if a.OfferLatency > 0 {
		if err := check(s.Rate, a.OfferLatency, a.LatencyBudgets); err != nil {
			return fmt.Errorf("offered latency: %w", err)
		}
	}
	return nil
}
