package sched

import "math"

// Load has a sub-cluster's load signals for an autoscaler.
type Load struct {
	GPUs, Idle int // present; of these, free by the time a batch of one sent now would start
	// Demand is Σ λ·ℓ(T)/T over the models: the GPUs that their estimated rates need at their
	// target batches. Demand/GPUs is u; unlike the busy fraction it keeps its meaning when early
	// dispatch fills idle GPUs with small batches.
	Demand float64
	Busy   Duration // GPU time given out so far, all GPUs together
}

// Load returns the load signals.
func (r *Ranker) Load() Load {
	return Load{GPUs: r.count, Idle: r.unused(), Demand: float64(r.demand) / 1e6, Busy: r.spent}
}

// growthMax is the share of growth that a waiting candidate may forgo to run on an idle GPU now. Deferring keeps
// batches large and the busy fraction proportional to the load, so the share is small. But when the demand needs
// nearly all GPUs, an idle one is capacity lost for the next burst, and the more of them are idle, the larger the
// share.
func (r *Ranker) growthMax() float64 {
	// The number of idle GPUs matters only when the demand needs nearly all of them.
	u := r.load()
	if u < tight || u < r.o.Prompt {
		return r.o.growthMax(u)
	}

	// Many GPUs leave more idle than chance does, at any load below 1. Where GPU time is scarce, only idle GPUs beyond
	// these are a sign that the next burst will find none.
	root := math.Sqrt(float64(r.count))
	usual := scarcity(u) * max(0, (1-u)*float64(r.count)-idleFew)
	return min(growthMost, growthBase+growthIdle*max(0, float64(r.unused())-usual)/root)
}

// unused returns the number of GPUs that no request uses: idle ones, and those that only run spare work.
func (r *Ranker) unused() int {
	if r.spare == nil {
		return r.idle.n
	}
	return r.idle.n + r.spare.count - r.spare.followed - len(r.spare.watch)
}

// growthMax returns the most that a Ranker may allow at a load u, however many GPUs are idle. Below Prompt no
// candidate has to wait.
func (o *Options) growthMax(u float64) float64 {
	switch {
	case u < o.Prompt:
		return math.Inf(1)
	case u < tight:
		return growthBase
	}
	return growthMost
}

const (
	growthBase = 0.1
	growthIdle = 0.7 // per √N: the number of idle GPUs varies with the square root of their number
	growthMost = 1
	idleFew    = 2.5 // idle GPUs that count in any case
	tight      = 0.85
)

// load returns u, the demand per GPU that is not held. With one of two GPUs held, the other must form batches for an
// overload, not those of two GPUs.
func (r *Ranker) load() float64 { return float64(r.demand) / 1e6 / float64(max(1, r.count-r.held)) }

// leastLoad returns u for the case that every service uses the variant that takes the least GPU time.
func (r *Ranker) leastLoad() float64 { return float64(r.least) / 1e6 / float64(max(1, r.count)) }
