package plan

import (
	"slices"
	"time"
)

// Direct consequences of backends' announcements and measurements, for the registry to put in force.

// Where nobody says an SLO: so many times ℓ(1), and at least so long.
const (
	sloBatches = 4
	sloLeast   = 50 * time.Millisecond
)

// SLOInForce returns a model's SLO: the operator's, else the backend's, else one that follows from ℓ(1). 0 is none.
func SLOInForce(operator, backend, one time.Duration) time.Duration {
	// The operator's word is above the backend's.
	if operator > 0 {
		return operator
	}
	if backend != 0 {
		return backend
	}
	return max(sloLeast, sloBatches*one)
}

// LargestHomes returns which of the sub-clusters with these numbers of GPUs serve a model: the ones with most GPUs,
// up to most of them, in their order.
func LargestHomes(gpus []int, most int) []int {
	all := make([]int, len(gpus))
	for i := range all {
		all[i] = i
	}
	if len(all) > most {
		// Stable, so that among equals the lower numbers stay and the choice does not flap.
		slices.SortStableFunc(all, func(a, b int) int { return gpus[b] - gpus[a] })
		all = all[:most]
		slices.Sort(all)
	}
	return all
}
