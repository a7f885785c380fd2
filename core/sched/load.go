package sched

import "math"

// Load is what an autoscaler may want to know of a sub-cluster.
type Load struct {
	GPUs, Idle int // present; of these free by the time a batch of one would start that is sent now
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

// growthMax is the share of growth that a waiting candidate may forgo to run on an idle GPU now.
// Deferring keeps batches large and the busy fraction true to the load, so it is small; but when
// the demand needs nearly all GPUs, an idle one is capacity lost for the next burst, and the more
// of them idle the more may be forgone.
func (r *Ranker) growthMax() float64 {
	// How many GPUs are idle counts only when the demand needs nearly all of them.
	u := r.load()
	if u < tight || u < r.o.Prompt {
		return r.o.growthMax(u)
	}
	return min(growthMost, growthBase+growthIdle*float64(r.unused())/math.Sqrt(float64(r.count)))
}

// unused returns how many GPUs no request uses: those that are idle, and those that only run spare work.
func (r *Ranker) unused() int {
	if r.spare == nil {
		return r.idle.n
	}
	return r.idle.n + r.spare.count - r.spare.followed - len(r.spare.watch)
}

// growthMax is the most that a Ranker may allow at a load u, whatever idles. Below Prompt no
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
	growthIdle = 0.7 // per √N: the number of idle GPUs scatters with the root of their number
	growthMost = 1
	tight      = 0.85
)

// load returns u, the demand per GPU that is not held back: with one of two held back, the other one has to form the
// batches of an overload, not those of two GPUs.
func (r *Ranker) load() float64 { return float64(r.demand) / 1e6 / float64(max(1, r.count-r.held)) }

// leastLoad returns what u would be if every service used the variant that takes least GPU time.
func (r *Ranker) leastLoad() float64 { return float64(r.least) / 1e6 / float64(max(1, r.count)) }
