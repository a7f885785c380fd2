package plan

import (
	"fmt"
	"math"
	"time"
)

// CheckEpoch reports a weight that differs from that of a placement. It computes the demand on each GPU itself, from
// rates and profiles.
func CheckEpoch(s *Snapshot, wanted Placement, epoch time.Duration, w EpochWeight) error {
	before, after := 0.0, 0.0
	for g := range s.GPUs {
		before, after = max(before, demandOn(s, s.Present, g)), max(after, demandOn(s, wanted, g))
	}
	if math.Abs(before-w.Before) > 1e-9*max(1, before) || math.Abs(after-w.After) > 1e-9*max(1, after) {
		return fmt.Errorf("the busiest GPU is asked for %v of its time before and %v after, not %v and %v", before, after, w.Before, w.After)
	}

	took := 0.0
	for m := range wanted {
		for g := range wanted[m] {
			if s.Present[m][g] == Absent && wanted[m][g] == Offered {
				took += s.Models[m].Load.Seconds()
			}
		}
	}
	if all := float64(len(s.GPUs)) * epoch.Seconds(); math.Abs(took-w.Cost*all) > 1e-6*max(1, took) {
		return fmt.Errorf("loads take %v s, not %v of %v s", took, w.Cost, all)
	}
	return nil
}

// demandOn returns the demand of a GPU's offered models, as a share of its time.
func demandOn(s *Snapshot, p Placement, gpu int) (asked float64) {
	pool := s.GPUs[gpu].Pool
	for m := range s.Models {
		x := &s.Models[m]
		if p[m][gpu] != Offered || int(pool) >= len(x.Profiles) || x.Profiles[pool] == nil {
			continue
		}

		// A pool gets the share of the rate that its GPUs have among all GPUs that now have the model.
		here, all, offer := 0.0, 0.0, 0.0
		for g := range s.GPUs {
			same := s.GPUs[g].Pool == pool
			if s.Present[m][g] != Absent {
				all++
				if same {
					here++
				}
			}
			if same && p[m][g] == Offered {
				offer++
			}
		}
		rate := x.Rate * here / max(all, 1)
		if cost, _, err := Cost(x.Profiles[pool], x.SLO, rate); err == nil {
			asked += rate * cost / offer
		}
	}
	return asked
}
