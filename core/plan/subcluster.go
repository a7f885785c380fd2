package plan

import (
	"cmp"
	"slices"
	"time"
)

// Pool is what GPUs that may form one sub-cluster have in common, as the operator and the GPUs state it. Measurements
// are not part of it, because two measurements of one kind on busy hosts differ.
type Pool struct {
	Name   string // of a sub-cluster, by the operator; empty: none
	Kind   string // of the GPUs; empty: not known, as for backends that speak protocol 7 or less
	Memory uint64 // bytes of each; 0: not known
}

// PooledGPU is a GPU of a pool, or one that represents a whole sub-cluster.
type PooledGPU struct {
	Pool
	Models []uint32 // models that it offers, ascending
	// Profiles are ℓ(b) of these models. They matter only if the kind is not known.
	Profiles [][]time.Duration
}

// SubClusterState is the present state of a sub-cluster. A sub-cluster that all GPUs have left has 0 GPUs.
type SubClusterState struct {
	PooledGPU
	GPUs int
}

// alikePercent is the longest duration of a batch on one GPU of a kind, in percent of its duration on another.
// Repeated measurements of one host differ by a tenth. It separates GPUs of unknown kinds.
const alikePercent = 115

// MayShare reports whether two GPUs may form one sub-cluster. Each may get any of its batches, so they must be of one
// kind and offer the same models.
func (g *PooledGPU) MayShare(x *PooledGPU) bool {
	if g.Pool != x.Pool || !slices.Equal(g.Models, x.Models) {
		return false
	}
	return g.Kind != "" || slices.EqualFunc(g.Profiles, x.Profiles, alikeProfiles)
}

// alikeProfiles reports whether two profiles of a model may belong to one kind.
func alikeProfiles(a, b []time.Duration) bool {
	return slices.EqualFunc(a, b, func(x, y time.Duration) bool {
		// Neither is the reference, because the order of arrival must not matter.
		return 100*max(x, y) <= alikePercent*min(x, y)
	})
}

// SubClusterFor returns the number, from 0, of the sub-cluster for a GPU that is now in own, or Nowhere if a new one
// is needed. It prefers the GPU's own while that fits, because a GPU that moves loses its grants; then the first with
// GPUs that fits; then the last one without GPUs.
func SubClusterFor(own int, g *PooledGPU, all []SubClusterState) int {
	fits := func(i int) bool { return g.MayShare(&all[i].PooledGPU) }
	if own != Nowhere && fits(own) {
		return own
	}

	// Numbers are few, so reuse a sub-cluster that all GPUs have left before creating a new one.
	empty := Nowhere
	for i := range all {
		if all[i].GPUs == 0 {
			empty = i
		} else if fits(i) {
			return i
		}
	}
	return empty
}

// MeasuredProfile is ℓ(b) of a model as one backend measured it, on so many GPUs of a sub-cluster.
type MeasuredProfile struct {
	Table []time.Duration
	GPUs  int
}

// KindProfile returns the ℓ(b) with which the GPUs of a sub-cluster are planned, each of which may get any batch. At
// every size it is the duration on the slowest GPU, up to the largest batch that all GPUs support. If their kind is
// known, it is at most 15 % more than on half of them. Without profiles the result is nil.
//
// Measurements of GPUs of one kind differ with the other load of their hosts. Within the spread of repeated
// measurements the slowest is believed, because a batch that ends later than planned misses its deadline, and one
// that ends sooner costs little. Beyond that spread, one measurement at a bad moment would make the plan slow for all
// GPUs. If a GPU really is that slow, its batches end late; deadlines learn to leave room for this, and the GPU's
// health is judged by it.
//
// GPUs without a known kind are grouped by these measurements alone, each within 15 % of the first. Nothing else says
// that the slowest could be as fast as the others, so the slowest decides.
func KindProfile(kind string, all []MeasuredProfile) []time.Duration {
	if len(all) == 0 {
		return nil
	}

	// A batch that some GPU does not support is planned for none.
	sizes, gpus := len(all[0].Table), 0
	for _, x := range all {
		sizes, gpus = min(sizes, len(x.Table)), gpus+x.GPUs
	}
	table := make([]time.Duration, sizes)
	var sorted []MeasuredProfile
	for k := range table {
		least, most := all[0].Table[k], all[0].Table[k]
		for _, x := range all[1:] {
			least, most = min(least, x.Table[k]), max(most, x.Table[k])
		}

		// Usually they are alike, and the median is not needed.
		if kind != "" && 100*most > alikePercent*least {
			if sorted == nil {
				sorted = slices.Clone(all)
			}
			slices.SortFunc(sorted, func(x, y MeasuredProfile) int { return cmp.Compare(x.Table[k], y.Table[k]) })
			most = min(most, medianAt(sorted, gpus, k)*alikePercent/100)
		}
		table[k] = most
	}
	return table
}

// IsMuchSlower reports whether a profile takes more than twice as long as another at some batch size of both.
// Repeated measurements of GPUs of one kind do not differ by so much.
func IsMuchSlower(table, than []time.Duration) bool {
	for k := range min(len(table), len(than)) {
		if table[k] > 2*than[k] {
			return true
		}
	}
	return false
}

// medianAt returns the duration that at least half of the GPUs do not exceed at a batch size, for profiles in
// ascending order.
func medianAt(sorted []MeasuredProfile, gpus, k int) time.Duration {
	seen := 0
	for _, x := range sorted {
		if seen += x.GPUs; 2*seen >= gpus {
			return x.Table[k]
		}
	}
	return sorted[len(sorted)-1].Table[k]
}
