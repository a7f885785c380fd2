package plan

import (
	"fmt"
	"math"
	"sort"
	"time"

	"downbeat.dev/core/profile"
)

// gpusMax bounds every number of GPUs in a plan.
const gpusMax = 1 << 20

// Sizing is the need of a model alone.
type Sizing struct {
	GPUs     int
	Batch    int     // the batch that the GPUs run if they take turns evenly
	Capacity float64 // requests/s that GPUs carry, including u*
}

// Size returns the fewest GPUs that serve a new model at rate requests/s within its SLO (Symphony §4.2, equations 2
// and 3): the smallest N with b the largest batch such that (1 + 1/N)·ℓ(b) < slo, and u*(N)·N·b/ℓ(b) ≥ rate. The
// paper uses all of N·b/ℓ(b), which only regular arrivals reach; u* leaves the room that random ones need. A rate of
// 0 needs no GPU.
//
// It fails with an InfeasibleError if one request alone takes the whole SLO.
func Size(p *profile.Profile, slo time.Duration, rate float64, targets Targets) (Sizing, error) {
	if err := targets.Validate(); err != nil {
		return Sizing{}, err
	}
	switch {
	case p == nil:
		return Sizing{}, refuse("profile", "missing", "one of the model on this kind of GPU")
	case slo <= 0:
		return Sizing{}, refuse("SLO", slo, "more than 0")
	case !finite(rate):
		return Sizing{}, refuse("rate", rate, "a finite number of requests/s, 0 or more")
	case p.Exec(1) >= slo:
		return Sizing{}, &InfeasibleError{"SLO against ℓ(1)", p.Exec(1).Seconds() * 1e3, slo.Seconds() * 1e3, "ms"}
	case rate == 0:
		return Sizing{}, nil
	}

	// More GPUs allow larger batches, so capacity grows with N wherever u* does.
	best := bestBatches(p)
	n := sort.Search(gpusMax, func(i int) bool { return sizeAt(p, best, slo, i+1, targets).Capacity >= rate }) + 1
	if n > gpusMax {
		most := sizeAt(p, best, slo, gpusMax, targets).Capacity
		return Sizing{}, &InfeasibleError{fmt.Sprintf("rate on %d GPUs", gpusMax), rate, most, "requests/s"}
	}
	return sizeAt(p, best, slo, n, targets), nil
}

// sizeAt returns the Sizing of n GPUs. best[b] is the batch up to b that serves the most requests per second.
func sizeAt(p *profile.Profile, best []int32, slo time.Duration, n int, targets Targets) Sizing {
	// (1+1/N)·ℓ < slo in integers: ℓ·(N+1) < slo·N.
	longest := time.Duration((int64(slo)*int64(n) - 1) / int64(n+1))
	b := int(best[p.BatchMax(longest)])
	if b == 0 {
		return Sizing{GPUs: n}
	}

	ideal := float64(n) * float64(b) / p.Exec(b).Seconds()
	return Sizing{GPUs: n, Batch: b, Capacity: targets.At(n) * ideal}
}

// bestBatches returns, for every limit on the batch size, the batch that serves the most requests per second. On a
// profile that bends upwards this is not the largest.
func bestBatches(p *profile.Profile) []int32 {
	best := make([]int32, p.Max()+1)
	most := 0.0
	for b := 1; b <= p.Max(); b++ {
		best[b] = best[b-1]
		if speed := float64(b) / p.Exec(b).Seconds(); speed > most {
			most, best[b] = speed, int32(b)
		}
	}
	return best
}

// waitShare is the share of the time between ℓ(1) and the SLO that a request waits for a single GPU, if the GPU is
// fully loaded. It falls with the root of the number of GPUs, like the waits of random arrivals (decision 0364).
const waitShare = 0.8

// CostAmong returns the GPU time per request, in seconds, of a model that shares so many GPUs with others of a
// similar SLO. Its batches gather during the budget that the wait for a GPU leaves: b − 1 = rate × (budget − wait −
// ℓ(b)). b is not an integer, because batches of random arrivals vary. CostAmong fails as Cost does.
func CostAmong(p *profile.Profile, budget time.Duration, rate float64, gpus int) (float64, error) {
	if gpus < 1 {
		return 0, refuse("GPUs", gpus, "1 or more")
	}
	if p != nil {
		budget -= time.Duration(waitShare / math.Sqrt(float64(gpus)) * float64(max(0, budget-p.Exec(1))))
	}
	cost, batch, err := Cost(p, budget, rate)
	if err != nil || batch == p.Max() || rate == 0 {
		return cost, err
	}

	// Interpolate between this batch and the next one.
	exec, next := p.Exec(batch).Seconds(), p.Exec(batch+1).Seconds()
	part := (budget.Seconds() - exec - float64(batch-1)/rate) / (next - exec + 1/rate)
	return (exec + part*(next-exec)) / (float64(batch) + part), nil
}

// Cost returns the target batch T of a model and its GPU time per request, c = ℓ(T)/T in seconds. T is the largest b
// with (b−1)/rate + ℓ(b) ≤ budget: the batch that a queue gathers while its head may wait. It fails with an
// InfeasibleError if ℓ(1) alone exceeds the budget.
func Cost(p *profile.Profile, budget time.Duration, rate float64) (seconds float64, batch int, err error) {
	switch {
	case p == nil:
		return 0, 0, refuse("profile", "missing", "one of the model on this kind of GPU")
	case !finite(rate):
		return 0, 0, refuse("rate", rate, "a finite number of requests/s, 0 or more")
	case p.Exec(1) > budget:
		return 0, 0, &InfeasibleError{"budget against ℓ(1)", p.Exec(1).Seconds() * 1e3, budget.Seconds() * 1e3, "ms"}
	}

	// A larger batch takes longer to gather and to run, so a binary search finds the largest that fits.
	batch = 1 + sort.Search(p.Max()-1, func(i int) bool {
		b := i + 2
		gather := math.Inf(1)
		if rate > 0 {
			gather = float64(b-1) / rate
		}
		return gather+p.Exec(b).Seconds() > budget.Seconds()
	})
	return p.Exec(batch).Seconds() / float64(batch), batch, nil
}
