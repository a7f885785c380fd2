// Package profile models the latency of a batch: ℓ(b) = αb + β (Symphony §3.1), fitted to measurements or taken from
// a table of measured sizes. It also holds the published model zoos. It knows nothing of time or queues.
//
// A Profile is immutable after New or Linear and safe for concurrent use.
package profile

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// BatchLimit is the largest table that New, Linear and the readers accept: 65,536 batch sizes.
const BatchLimit = 1 << 16

// LatencyLimit is the longest ℓ(b) accepted: one hour. It keeps sums of times far from overflow.
const LatencyLimit = time.Hour

// Profile is the execution latency of one model on one kind of GPU.
type Profile struct {
	table []time.Duration // table[b-1] = ℓ(b), strictly positive, non-decreasing
	slope time.Duration   // the cost of one more request beyond the table, ≥ 0
}

// New builds a profile from ℓ(1)…ℓ(n). It copies the table, and refuses an empty one, one longer
// than BatchLimit, entries that are not in (0, LatencyLimit], and a table that decreases.
func New(table []time.Duration) (*Profile, error) {
	if len(table) == 0 {
		return nil, fmt.Errorf("profile: empty table, want ℓ(1)…ℓ(n)")
	}
	if len(table) > BatchLimit {
		return nil, fmt.Errorf("profile: %d batch sizes, want at most %d", len(table), BatchLimit)
	}

	for i, d := range table {
		if d <= 0 || d > LatencyLimit {
			return nil, fmt.Errorf("profile: ℓ(%d) = %v, want more than 0 and at most %v", i+1, d, LatencyLimit)
		}
		if i > 0 && d < table[i-1] {
			return nil, fmt.Errorf("profile: ℓ(%d) = %v is less than ℓ(%d) = %v, want a table that does not decrease", i+1, d, i, table[i-1])
		}
	}

	// Beyond the table one more request costs as much as the table's last one.
	p := &Profile{table: slices.Clone(table)}
	if n := len(table); n > 1 {
		p.slope = table[n-1] - table[n-2]
	} else {
		p.slope = table[0]
	}
	return p, nil
}

// Linear builds ℓ(b) = alpha·b + beta for b = 1…batchMax. alpha must be positive, beta ≥ 0.
func Linear(alpha, beta time.Duration, batchMax int) (*Profile, error) {
	switch {
	case alpha <= 0 || alpha > LatencyLimit:
		return nil, fmt.Errorf("profile: alpha = %v, want more than 0 and at most %v", alpha, LatencyLimit)
	case beta < 0 || beta > LatencyLimit:
		return nil, fmt.Errorf("profile: beta = %v, want 0 to %v", beta, LatencyLimit)
	case batchMax < 1 || batchMax > BatchLimit:
		return nil, fmt.Errorf("profile: batch maximum %d, want 1 to %d", batchMax, BatchLimit)
	}

	table := make([]time.Duration, batchMax)
	for i := range table {
		table[i] = alpha*time.Duration(i+1) + beta
	}

	p, err := New(table)
	if err != nil {
		return nil, err
	}

	// From a table of one entry New would take α + β as the slope.
	p.slope = alpha
	return p, nil
}

// Table returns a copy of ℓ(1)…ℓ(n); n is at most Max.
func (p *Profile) Table(n int) []time.Duration { return slices.Clone(p.table[:n]) }

// Has reports whether the profile was built from this table.
func (p *Profile) Has(table []time.Duration) bool { return slices.Equal(p.table, table) }

// Max returns the largest batch of the table.
func (p *Profile) Max() int { return len(p.table) }

// Exec returns ℓ(b). Beyond Max it extends by the last slope, so that a scheduler may ask for ℓ(b+1) at the limit; b
// < 1 counts as 1.
func (p *Profile) Exec(b int) time.Duration {
	switch n := len(p.table); {
	case b < 1:
		return p.table[0]
	case b <= n:
		return p.table[b-1]
	default:
		return p.table[n-1] + p.slope*time.Duration(b-n)
	}
}

// BatchMax returns the largest batch with ℓ(b) ≤ d; 0 if there is none, at most Max.
func (p *Profile) BatchMax(d time.Duration) int {
	return sort.Search(len(p.table), func(i int) bool { return p.table[i] > d })
}

// Line is a fitted ℓ(b) = Alpha·b + Beta.
type Line struct {
	Alpha, Beta time.Duration
	R2          float64 // share of the variance explained, at most 1
}

// Fit finds the least-squares line through measured latencies: latency[i] was measured at batch size size[i]. It
// needs two different sizes and refuses a falling line. A negative Beta, from weak batching and noise, becomes 0,
// with Alpha fitted through the origin.
func Fit(size []int, latency []time.Duration) (Line, error) {
	if len(size) != len(latency) {
		return Line{}, fmt.Errorf("profile: %d sizes and %d latencies, want as many", len(size), len(latency))
	}

	var n, sx, sy, sxx, sxy float64
	for i, b := range size {
		if b < 1 || latency[i] <= 0 {
			return Line{}, fmt.Errorf("profile: measurement %d: size %d latency %v, want both positive", i, b, latency[i])
		}

		x, y := float64(b), float64(latency[i])
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}

	// The sum of squared distances from the mean, times n; 0 if all sizes are equal.
	den := n*sxx - sx*sx
	if n < 2 || den <= 0 {
		return Line{}, fmt.Errorf("profile: %d measurements of one size, want at least two sizes", len(size))
	}

	alpha := (n*sxy - sx*sy) / den
	beta := (sy - alpha*sx) / n

	// A line with a negative intercept is fitted again through the origin.
	if beta < 0 {
		alpha, beta = sxy/sxx, 0
	}
	if alpha <= 0 {
		return Line{}, fmt.Errorf("profile: latency falls with the batch size (slope %v), want one that grows", time.Duration(alpha))
	}

	l := Line{Alpha: time.Duration(math.Round(alpha)), Beta: time.Duration(math.Round(beta))}
	l.R2 = r2(size, latency, alpha, beta, sy/n)
	return l, nil
}

func r2(size []int, latency []time.Duration, alpha, beta, mean float64) float64 {
	var res, tot float64
	for i, b := range size {
		y := float64(latency[i])
		e := y - alpha*float64(b) - beta
		res += e * e
		tot += (y - mean) * (y - mean)
	}

	// Equal latencies have no variance to explain.
	if tot == 0 {
		return 0
	}
	return 1 - res/tot
}
