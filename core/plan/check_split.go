package plan

import (
	"fmt"
	"time"
)

// CheckSplit follows every path of an application. It reports a path that takes longer than the latency, a batch that
// its budget does not allow, an offset that differs from the time after the stage, and a demand that differs from the
// batches' demand.
func CheckSplit(a Application, rate float64, latency time.Duration, b StageBudgets) error {
	demand := 0.0
	for j, s := range a.Stages {
		if s.Profile == nil {
			if b.Budget[j] < s.Fixed {
				return fmt.Errorf("stage %d takes %v and has %v", j, s.Fixed, b.Budget[j])
			}
			continue
		}

		n := b.Batch[j]
		if n < 1 || n > s.Profile.Max() {
			return fmt.Errorf("stage %d: a batch of %d, the largest is %d", j, n, s.Profile.Max())
		}

		takes := s.Profile.Exec(n).Seconds()
		if n > 1 {
			takes += float64(n-1) / (s.OthersRate + rate*s.FanOut)
		}
		if takes > b.Budget[j].Seconds()+1e-8 {
			return fmt.Errorf("stage %d: batches of %d take %v s, its budget is %v", j, n, takes, b.Budget[j])
		}

		demand += rate * s.FanOut * s.Profile.Exec(n).Seconds() / float64(n)
	}

	if abs(demand-b.Total) > 1e-9*(1+demand) {
		return fmt.Errorf("a demand of %v GPUs, the budgets say %v", demand, b.Total)
	}

	// Follow paths one by one: exponential, but obviously right.
	var timeAfter func(j int32) time.Duration // the longest path from the end of a stage
	timeAfter = func(j int32) time.Duration {
		longest := time.Duration(0)
		for k, s := range a.Stages {
			for _, before := range s.After {
				if before == j {
					longest = max(longest, b.Budget[k]+timeAfter(int32(k)))
				}
			}
		}
		return a.Hop + longest
	}

	for j := range a.Stages {
		if got := timeAfter(int32(j)); got != b.Offset[j] {
			return fmt.Errorf("stage %d: %v after it, the budgets say %v", j, got, b.Offset[j])
		}
		if len(a.Stages[j].After) == 0 && b.Budget[j]+b.Offset[j] > latency {
			return fmt.Errorf("a path from stage %d takes %v of %v", j, b.Budget[j]+b.Offset[j], latency)
		}
	}
	return nil
}
