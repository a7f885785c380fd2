package limits

import "time"

// What is taken of measured delays, and when: the ledger's d_ctrl, d_data and overrun are percentiles of the latest samples.
const (
	DelayPermille   = 999 // of round trips, and of the times that inputs take to fetch
	OverrunPermille = 990 // of how late batches end

	OverrunLatest = 256                   // batches count,
	OverrunTurn   = 32                    // after so many the percentile is taken anew,
	OverrunEvery  = 10 * time.Millisecond // and not more often than this: it sorts
	DelaysEvery   = time.Second           // so often d_ctrl and d_data are taken anew
)

// OneWay is d_ctrl of round trips with this median and this high percentile: a round trip's tail is taken to lie in one
// direction.
func OneWay[D span](median, high D) D { return high - median/2 }

// OneWayVaried is the least d_ctrl by a kernel's smoothed mean of round trips and its mean deviation: RFC 6298's bound of round trips, less the
// way back. It is 0 where the mean is longer than the slowest ping: then acknowledgements were held back on the other side, and the
// kernel tells of more than the network.
func OneWayVaried[D span](mean, deviation, slowest D) D {
	if mean > slowest {
		return 0
	}
	return mean/2 + 4*deviation
}

// Bound is what the network may be taken to need, as it gathers what peers measure and what services can bear.
type Bound[D span] struct{ Ctrl, Data D }

// Slowest is the bound when one more peer has measured so much: the slowest peer counts for all.
func (b Bound[D]) Slowest(ctrl, data D) Bound[D] {
	return Bound[D]{max(b.Ctrl, ctrl), max(b.Data, data)}
}

// Within is the bound when a service with an SLO, and batches of at most batchMax, must keep time to batch.
func (b Bound[D]) Within(slo D, batchMax int) Bound[D] {
	ctrl, data := DelaysMost(slo, batchMax)
	return Bound[D]{min(b.Ctrl, ctrl), min(b.Data, data)}
}

// Near says whether a delay need not be replaced by another: within a tenth or 10 µs. A change makes every partition plan
// anew.
func Near[D span](a, b D) bool {
	d := max(a, b) - min(a, b)
	return d <= D(nearLeast) || d*nearShare <= max(a, b)
}

const (
	nearLeast = 10 * time.Microsecond
	nearShare = 10
)

// Absence is how long a watchdog that looks every so often, and looked last so long ago, was stopped itself, or its host: it
// counts as no silence of others.
func Absence[D span](every, ago D) D {
	if ago < absentLooks*every {
		return 0
	}
	return ago
}

const absentLooks = 5
