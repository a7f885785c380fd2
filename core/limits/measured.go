package limits

import "time"

// Rules for measured delays: d_ctrl, d_data and overrun are percentiles of the latest samples.
const (
	DelayPermille   = 999 // of round trips, and of fetch times of inputs
	OverrunPermille = 990 // of the lateness of batches

	OverrunLatest = 256                   // number of latest batches that count
	OverrunTurn   = 32                    // batches between updates of the percentile
	OverrunEvery  = 10 * time.Millisecond // least time between updates, as each sorts the samples
	DelaysEvery   = time.Second           // time between updates of d_ctrl and d_data
)

// OneWay is d_ctrl for round trips with this median and high percentile. It assumes that a round trip's tail lies in
// one direction.
func OneWay[D span](median, high D) D { return high - median/2 }

// OneWayVaried is the least d_ctrl given a kernel's smoothed mean of round trips and its mean deviation: RFC 6298's
// bound of round trips, less the way back. It is 0 if the mean exceeds the slowest ping: then the other side delayed
// acknowledgements, and the kernel's numbers include more than the network.
func OneWayVaried[D span](mean, deviation, slowest D) D {
	if mean > slowest {
		return 0
	}
	return mean/2 + 4*deviation
}

// Bound is the network delay to plan with, gathered from peers' measurements and limited by what services can bear.
type Bound[D span] struct{ Ctrl, Data D }

// Slowest returns the bound that includes one more peer's measurements: the slowest peer counts for all.
func (b Bound[D]) Slowest(ctrl, data D) Bound[D] {
	return Bound[D]{max(b.Ctrl, ctrl), max(b.Data, data)}
}

// Within returns the bound limited for a service with this SLO and batches of at most batchMax, so that it keeps time
// to batch.
func (b Bound[D]) Within(slo D, batchMax int) Bound[D] {
	ctrl, data := DelaysMost(slo, batchMax)
	return Bound[D]{min(b.Ctrl, ctrl), min(b.Data, data)}
}

// Near reports whether two delays differ by less than a tenth or 10 µs. A smaller change is not worth making every
// partition plan again.
func Near[D span](a, b D) bool {
	d := max(a, b) - min(a, b)
	return d <= D(nearLeast) || d*nearShare <= max(a, b)
}

const (
	nearLeast = 10 * time.Microsecond
	nearShare = 10
)

// Absence is how long a watchdog was itself stopped, or its host, if it looks at this interval and last looked so
// long ago. That time does not count as silence of its peers.
func Absence[D span](every, ago D) D {
	if ago < absentLooks*every {
		return 0
	}
	return ago
}

const absentLooks = 5
