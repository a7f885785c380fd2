package measure

import (
	"math"
	"slices"
	"time"

	"downbeat.dev/core/profile"
)

// summarizeSamples turns samples into a Result. Sizes without samples are filled in by the line.
func summarizeSamples(sizes []int, samples [][]time.Duration, batchMax int) *Result {
	res := &Result{}
	var at []int
	var high []time.Duration
	for i, b := range sizes {
		if len(samples[i]) == 0 {
			continue
		}

		s := slices.Sorted(slices.Values(samples[i]))
		res.Sizes = append(res.Sizes, Size{Batch: b, Samples: len(s), P50: nearestRank(s, 0.50), P99: nearestRank(s, 0.99), High: nearestRank(withoutStalls(s), Percentile)})
		at, high = append(at, b), append(high, res.Sizes[len(res.Sizes)-1].High)
	}

	// One size makes no line, nor do latencies that fall.
	if line, err := profile.Fit(at, high); err == nil {
		res.Line, res.Fitted = line, true
	}

	for i := range res.Sizes {
		s := &res.Sizes[i]
		s.Residual = s.High - res.Line.Alpha*time.Duration(s.Batch) - res.Line.Beta
	}

	res.Table = fillTable(at, isotonicFit(high), res.Line, batchMax)
	return res
}

// stallFactor tells a stall of the host from a slow batch: so many times the median.
const stallFactor = 3

// withoutStalls cuts sorted samples where the host stood still. One of them among few samples would
// otherwise be ℓ of its batch size and, since the table does not decrease, of all larger ones.
func withoutStalls(sorted []time.Duration) []time.Duration {
	limit := stallFactor * nearestRank(sorted, 0.50)
	n, _ := slices.BinarySearch(sorted, limit+1)
	return sorted[:n]
}

// isotonicFit returns the non-decreasing values nearest to v in least squares: neighbours that decrease
// are replaced by their mean, over and over (pool adjacent violators; Ayer et al. 1955).
func isotonicFit(v []time.Duration) []time.Duration {
	type pool struct {
		sum time.Duration
		n   int
	}
	mean := func(p pool) time.Duration { return p.sum / time.Duration(p.n) }

	var pools []pool
	for _, x := range v {
		p := pool{x, 1}

		// Merging lowers the mean, so that the pool before may have to be merged, too.
		for len(pools) > 0 && mean(pools[len(pools)-1]) > mean(p) {
			last := pools[len(pools)-1]
			pools = pools[:len(pools)-1]
			p = pool{last.sum + p.sum, last.n + p.n}
		}
		pools = append(pools, p)
	}

	var out []time.Duration
	for _, p := range pools {
		for range p.n {
			out = append(out, mean(p))
		}
	}
	return out
}

// nearestRank returns the nearest-rank percentile of sorted samples.
func nearestRank(sorted []time.Duration, p float64) time.Duration {
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// fillTable interpolates between what was measured, goes on by the line's slope beyond it, and never
// decreases.
func fillTable(at []int, high []time.Duration, line profile.Line, batchMax int) []time.Duration {
	out := make([]time.Duration, batchMax)
	for k, last := 0, len(at)-1; k <= last; k++ {
		out[at[k]-1] = max(high[k], 1)

		// Beyond the largest size that was measured the line goes on.
		if k == last {
			for b := at[k] + 1; b <= batchMax; b++ {
				out[b-1] = out[b-2] + line.Alpha
			}
			break
		}

		for b := at[k] + 1; b < at[k+1]; b++ {
			out[b-1] = high[k] + (high[k+1]-high[k])*time.Duration(b-at[k])/time.Duration(at[k+1]-at[k])
		}
	}

	// A larger batch is never taken to be faster.
	for b := 1; b < batchMax; b++ {
		out[b] = max(out[b], out[b-1])
	}
	return out
}
