package plan

import (
	"slices"
	"time"
)

// Direct consequences of backends' announcements and measurements, which the registry applies.

// The SLO of a model without one: a multiple of ℓ(1), with a minimum.
const (
	sloBatches = 4
	sloLeast   = 50 * time.Millisecond
)

// SLOInForce returns a model's SLO: the operator's, otherwise the backend's, otherwise one that follows from ℓ(1). 0
// means none.
func SLOInForce(operator, backend, one time.Duration) time.Duration {
	// The operator's SLO overrides the backend's.
	if operator > 0 {
		return operator
	}
	if backend != 0 {
		return backend
	}
	return max(sloLeast, sloBatches*one)
}

// LargestHomes returns the sub-clusters that serve a model, given their numbers of GPUs: the largest ones, at most
// most of them, in their order.
func LargestHomes(gpus []int, most int) []int {
	all := make([]int, len(gpus))
	for i := range all {
		all[i] = i
	}
	if len(all) > most {
		// The sort is stable, so that among equals the lower numbers stay and the choice does not change back and
		// forth.
		slices.SortStableFunc(all, func(a, b int) int { return gpus[b] - gpus[a] })
		all = all[:most]
		slices.Sort(all)
	}
	return all
}
