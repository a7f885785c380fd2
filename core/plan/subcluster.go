package plan

import (
	"cmp"
	"slices"
	"time"
)

// Pool is what GPUs have in common that may form one sub-cluster: what runs batches alike, as the operator and the GPUs
// themselves say. What was measured is no part of it, since two measurements of one kind on busy hosts differ.
type Pool struct {
	Name   string // of a sub-cluster, by the operator; empty: none
	Kind   string // of the GPUs; empty: not known, as of backends that speak protocol 7 or less
	Memory uint64 // bytes of each; 0: not known
}

// PooledGPU is a GPU of a pool, or one that stands for all of a sub-cluster.
type PooledGPU struct {
	Pool
	Models []uint32 // that it offers, ascending
	// Profiles are ℓ(b) of these models. They are asked for only where the kind is not known.
	Profiles [][]time.Duration
}

// SubClusterState is a sub-cluster as it stands. One that all GPUs have left has 0 of them.
type SubClusterState struct {
	PooledGPU
	GPUs int
}

// alikePercent is how long a batch may take on one GPU of a kind, in percent of what it takes on another: repeated
// measurements of one host differ by a tenth. GPUs of no known kind are told apart by it.
const alikePercent = 115

// MayShare says whether two GPUs form one sub-cluster: each may get any batch of it, so they are of one kind and offer the
// same models.
func (g *PooledGPU) MayShare(x *PooledGPU) bool {
	if g.Pool != x.Pool || !slices.Equal(g.Models, x.Models) {
		return false
	}
	return g.Kind != "" || slices.EqualFunc(g.Profiles, x.Profiles, alikeProfiles)
}

// alikeProfiles says whether two profiles of a model may be those of one kind.
func alikeProfiles(a, b []time.Duration) bool {
	return slices.EqualFunc(a, b, func(x, y time.Duration) bool {
		// Neither is the reference: which came first must not matter.
		return 100*max(x, y) <= alikePercent*min(x, y)
	})
}

// SubClusterFor returns the number, from 0, of the sub-cluster that a GPU joins which is in one of them, or Nowhere: its own while that
// fits, since a GPU that moves loses what it was granted; else the first with GPUs that fits; else the last without. Nowhere: a new one
// has to be made.
func SubClusterFor(own int, g *PooledGPU, all []SubClusterState) int {
	fits := func(i int) bool { return g.MayShare(&all[i].PooledGPU) }
	if own != Nowhere && fits(own) {
		return own
	}

	// Numbers are few: a sub-cluster that all GPUs have left is used again before a new one is made.
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

// KindProfile returns the ℓ(b) by which the GPUs of a sub-cluster are planned, each of which may get any batch: at every
// size what the slowest of them takes, up to the largest batch that all can take; where their kind is known, at most 15 % more
// than half of them take. nil without any.
//
// What is measured of GPUs of one kind differs by what else their hosts did meanwhile. Up to the spread of
// repeated measurements the slowest is believed: a batch that ends later than planned costs its deadline, one that ends sooner little.
// Beyond it one measurement in a bad moment would have all GPUs planned as that slow. If a GPU really is, its batches end
// late, which deadlines learn to leave room for and which its health is judged by.
//
// GPUs of no known kind stand together by these measurements alone, each within 15 % of the first: nothing else says that the slowest
// could be as quick as the others.
func KindProfile(kind string, all []MeasuredProfile) []time.Duration {
	if len(all) == 0 {
		return nil
	}

	// A batch that some GPU cannot take is planned for none.
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

		// Mostly they are alike, and then the median need not be looked for.
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

// IsMuchSlower says whether a profile takes more than twice what another one does at some batch size of both: repeated
// measurements of GPUs of one kind do not differ by so much.
func IsMuchSlower(table, than []time.Duration) bool {
	for k := range min(len(table), len(than)) {
		if table[k] > 2*than[k] {
			return true
		}
	}
	return false
}

// medianAt returns what at least half of the GPUs do not exceed at a batch size; of profiles in ascending order.
func medianAt(sorted []MeasuredProfile, gpus, k int) time.Duration {
	seen := 0
	for _, x := range sorted {
		if seen += x.GPUs; 2*seen >= gpus {
			return x.Table[k]
		}
	}
	return sorted[len(sorted)-1].Table[k]
}
