package plan

import (
	"cmp"
	"time"
)

// The conditions under which a plan is worth its moves.
const (
	// EpochMoveShare bounds the moves of one epoch, as a share of the models' load time. Rates are estimates, and the
	// next epoch may reverse the moves of this one.
	EpochMoveShare = 0.25

	busyEasy       = 0.5  // of a GPU's time; below it no batch waits for a GPU, so an even load answers nobody sooner
	epochGainLeast = 0.05 // of a GPU's time; rates estimated over seconds differ by this much without a cause
)

// EpochWeight is the gain and the cost of an epoch's plan, as shares of the GPUs' time.
type EpochWeight struct {
	Before, After float64 // demand on the busiest GPU, with the present placement and with the plan's
	Cost          float64 // share of all GPUs' time in the epoch that the moves' loads take
}

// WeighEpoch compares a placement with the present one for an epoch. The GPUs of a pool that offer a model share its
// demand evenly.
func WeighEpoch(s *Snapshot, wanted Placement, epoch time.Duration) (w EpochWeight) {
	w.Before, w.After = s.busiest(s.Present), s.busiest(wanted)

	// Loads that are already in progress cost nothing more: only loads that the plan adds count.
	var loads time.Duration
	for m, on := range wanted {
		for g, at := range on {
			if at == Offered && s.Present[m][g] == Absent {
				loads += s.Models[m].Load
			}
		}
	}
	if len(s.GPUs) > 0 && epoch > 0 {
		w.Cost = float64(loads) / float64(epoch) / float64(len(s.GPUs))
	}
	return w
}

// IsWorthMoving reports whether a plan should be applied: it must take more load from the busiest GPU, if that GPU is
// busy at all, than its loads take from all GPUs.
func (w EpochWeight) IsWorthMoving() bool {
	gain := max(w.Before, busyEasy) - max(w.After, busyEasy)
	return gain >= epochGainLeast && gain > w.Cost
}

// busiest returns the demand on the busiest GPU, as a share of its time.
func (s *Snapshot) busiest(p Placement) (most float64) {
	pools := int32(0)
	for _, g := range s.GPUs {
		pools = max(pools, g.Pool+1)
	}

	asked := make([]float64, len(s.GPUs))
	for pool := range pools {
		gpus := s.poolGPUs(pool)
		for _, m := range s.poolModels(gpus) {
			// A model that no GPU of the pool offers puts no demand on it.
			offer := 0
			for _, g := range gpus {
				if p[m][g] == Offered {
					offer++
				}
			}

			each := s.describeNeeds(pool, m).Demand / float64(cmp.Or(offer, 1))
			for _, g := range gpus {
				if p[m][g] == Offered {
					asked[g] += each
				}
			}
		}
	}

	for _, x := range asked {
		most = max(most, x)
	}
	return most
}
