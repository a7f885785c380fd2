package limits

import "time"

// Percentiles and intervals of the measured delays: d_ctrl, d_data and the overrun are percentiles of the latest
// samples.
const (
	DelayPermille   = 999 // of round trips, and of the times to fetch inputs
	OverrunPermille = 990 // of batches' overruns

	OverrunLatest = 256                   // number of latest batches in the percentile
	OverrunTurn   = 32                    // batches between two computations of the percentile
	OverrunEvery  = 10 * time.Millisecond // shortest interval between two computations, since they sort
	DelaysEvery   = time.Second           // interval at which d_ctrl and d_data are computed
)

// OneWay returns d_ctrl for round trips with this median and this high percentile. It assumes that a round trip's
// tail lies in one direction.
func OneWay[D span](median, high D) D { return high - median/2 }

// OneWayVaried returns a lower bound of d_ctrl from a kernel's smoothed mean round trip and mean deviation: the bound
// of RFC 6298 minus the way back. It is 0 if the mean exceeds the slowest ping: then the other side delayed
// acknowledgements, and the kernel measures more than the network.
func OneWayVaried[D span](mean, deviation, slowest D) D {
	if mean > slowest {
		return 0
	}
	return mean/2 + 4*deviation
}

// Bound is the network delay to plan with, combined from the peers' measurements and the services' limits.
type Bound[D span] struct{ Ctrl, Data D }

// Slowest returns the bound with one more peer's measurement: the slowest peer determines it.
func (b Bound[D]) Slowest(ctrl, data D) Bound[D] {
	return Bound[D]{max(b.Ctrl, ctrl), max(b.Data, data)}
}

// Within returns the bound limited for a service with this SLO and batches of at most batchMax.
func (b Bound[D]) Within(slo D, batchMax int) Bound[D] {
	ctrl, data := DelaysMost(slo, batchMax)
	return Bound[D]{min(b.Ctrl, ctrl), min(b.Data, data)}
}

// Near reports whether two delays are equal within a tenth or 10 µs. Replacing a delay makes every partition plan
// again, so a near value is not replaced.
func Near[D span](a, b D) bool {
	d := max(a, b) - min(a, b)
	return d <= D(nearLeast) || d*nearShare <= max(a, b)
}

const (
	nearLeast = 10 * time.Microsecond
	nearShare = 10
)

// Absence returns how long a watchdog with this interval was itself stopped, or its host, if its last check was ago:
// that time does not count as silence of others. It is 0 for a normal delay.
func Absence[D span](every, ago D) D {
	if ago < absentLooks*every {
		return 0
	}
	return ago
}

const absentLooks = 5
