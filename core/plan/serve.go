package plan

import (
	"slices"
	"time"
)

// What follows at once from what backends say and measure, for the registry to put in force.

// alikeMost is how many times as long a batch may take on one GPU of a sub-cluster as on another: all are planned as
// the slowest. Repeated measurements of one host differ by a tenth.
const alikeMost = 1.15

// AlikeProfiles says whether GPUs with these ℓ(b) of a model can be planned as one.
func AlikeProfiles(a, b []time.Duration) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		// Neither is the reference: which came first must not matter.
		if float64(max(a[k], b[k])) > alikeMost*float64(min(a[k], b[k])) {
			return false
		}
	}
	return true
}

// SlowestProfile returns, in a's memory, the ℓ(b) by which GPUs with both are planned, since any of them may get any batch:
// the slower at each size, up to the largest that both can take.
func SlowestProfile(a, b []time.Duration) []time.Duration {
	a = a[:min(len(a), len(b))]
	for k := range a {
		a[k] = max(a[k], b[k])
	}
	return a
}

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

// SubClusterFor returns which of the sub-clusters with so many GPUs a GPU joins that is in one of them, or Nowhere: its own while that
// fits, since a GPU that moves loses what it was granted; else the first with GPUs that fits; else the last without. Nowhere: a new one
// has to be made.
func SubClusterFor(own int, gpus []int, fits func(int) bool) int {
	if own != Nowhere && fits(own) {
		return own
	}

	// Numbers are few: a sub-cluster that all GPUs have left is used again before a new one is made.
	empty := Nowhere
	for i, n := range gpus {
		if n == 0 {
			empty = i
		} else if fits(i) {
			return i
		}
	}
	return empty
}

// LargestHomes returns which of the sub-clusters with so many GPUs serve a model, at most so many: those with most GPUs,
// in their order.
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
