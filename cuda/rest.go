package cuda

import "time"

const (
	spins      = 32                    // queries in a row, about a microsecond each, before a wait sleeps
	wakeLate   = 60 * time.Microsecond // the usual delay with which the kernel wakes a sleeping thread
	restMost   = 200 * time.Microsecond
	restLeast  = 5 * time.Microsecond
	restGrowth = time.Microsecond
)

// restBetween passes the time between two queries of an event. If a wait knows when its batch should end, it sleeps
// once until shortly before that. Then it queries often, and less often the longer the batch takes. A waiting thread
// therefore costs a core some tens of microseconds per batch, and nothing between batches (docs/decisions/0065).
func restBetween(tries int, left time.Duration) {
	switch {
	case left > 2*wakeLate:
		napInKernel(left - wakeLate)
	case tries >= spins:
		napInKernel(min(restLeast+time.Duration(tries-spins)*restGrowth, restMost))
	}
}
