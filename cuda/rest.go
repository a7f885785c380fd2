package cuda

import "time"

const (
	spins      = 32                    // queries in a row, of about a microsecond each, before a wait sleeps
	wakeLate   = 60 * time.Microsecond // how late the kernel may wake a thread that naps, as a rule
	restMost   = 200 * time.Microsecond
	restLeast  = 5 * time.Microsecond
	restGrowth = time.Microsecond
)

// restBetween passes the time between two queries of an event. A wait that knows when its batch should end sleeps
// once, until shortly before; then it asks often, and less often the longer it takes. A thread that waits
// thus costs a core some tens of microseconds for each batch, and nothing while there is none
// (docs/decisions/0065).
func restBetween(tries int, left time.Duration) {
	switch {
	case left > 2*wakeLate:
		napInKernel(left - wakeLate)
	case tries >= spins:
		napInKernel(min(restLeast+time.Duration(tries-spins)*restGrowth, restMost))
	}
}
