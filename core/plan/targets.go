package plan

import (
	"fmt"
	"math"
)

// Target is the share u* of the GPU time of a cluster that requests may use while the bad rate stays below its limit.
// Random arrivals need some room, and few GPUs need more of it.
type Target struct {
	GPUs  int
	Share float64
}

// Targets is u* as a function of the number of GPUs: points in ascending order of GPUs, linear between them and
// constant beyond them.
type Targets []Target

// DefaultTargets returns the measured u*, at 1 % bad under Poisson arrivals over the profiles of both zoos
// (bench/plans, TestSizeWithinOneGPUOfSimulation).
func DefaultTargets() Targets {
	return Targets{{1, 0.66}, {2, 0.78}, {4, 0.87}, {8, 0.93}, {16, 0.958}, {32, 0.976}}
}

// Validate reports points out of order and shares outside (0, 1].
func (t Targets) Validate() error {
	if len(t) == 0 {
		return refuse("targets", "empty", "at least one point")
	}
	for i, p := range t {
		if p.GPUs < 1 || i > 0 && p.GPUs <= t[i-1].GPUs {
			return refuse(fmt.Sprintf("target %d: GPUs", i), p.GPUs, "1 or more, ascending")
		}
		if !(p.Share > 0 && p.Share <= 1) {
			return refuse(fmt.Sprintf("target %d: share", i), p.Share, "more than 0 and at most 1")
		}
	}
	return nil
}

// At returns u* of a cluster of gpus.
func (t Targets) At(gpus int) float64 {
	for i, p := range t {
		if gpus > p.GPUs {
			continue
		}
		if i == 0 {
			return p.Share
		}

		// Interpolate between two points.
		before := t[i-1]
		along := float64(gpus-before.GPUs) / float64(p.GPUs-before.GPUs)
		return before.Share + along*(p.Share-before.Share)
	}
	return t[len(t)-1].Share
}

// MaySpareGPU reports whether a cluster of gpus carries a demand, in GPUs, without one of them for a while.
func MaySpareGPU(t Targets, demand float64, gpus int) bool {
	return gpus > 1 && demand <= t.At(gpus-1)*float64(gpus-1)
}

// MayLoadBeside reports whether one more GPU of a cluster may load a model while others do: a quarter of its GPUs at
// a time, and always one. The others must take bursts that an average demand does not show.
func MayLoadBeside(gpus, others int) bool { return others == 0 || 4*(others+1) <= gpus }

// GPUsFor returns the fewest GPUs that carry a demand in GPUs: the smallest N with demand ≤ u*(N)·N.
func (t Targets) GPUsFor(demand float64) int {
	if demand <= 0 {
		return 0
	}

	lowest := t[0].Share
	for _, p := range t {
		lowest = min(lowest, p.Share)
	}

	// u* lies between its lowest point and 1, and u*(N)·N need not grow with N where the share falls. So search
	// upwards for the first N that carries the demand.
	last := int(math.Ceil(demand / lowest))
	for n := int(math.Ceil(demand)); n < last; n++ {
		if demand <= t.At(n)*float64(n) {
			return n
		}
	}
	return last
}
