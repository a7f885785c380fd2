// Package pace waits for a moment on the monotonic clock, to a few microseconds.
//
// It does not schedule: a Timer is one goroutine's own wait. Go's timers fire about 0.6 ms late on an idle process,
// because its poller counts in milliseconds; a timerfd in the same poller fires about 25 µs late, and the Timer spins
// for the last part. Without a timerfd the wait falls back to time.Timer and the spin.
//
// A Timer belongs to one goroutine; only Interrupt and Close may be called from another.
package pace

import "time"

// Margin is how long before the moment a Timer stops sleeping and spins: more than a timerfd is
// late at the 90th percentile of a quiet machine, and short enough to cost a core little.
const Margin = 50 * time.Microsecond

// spinUntil burns the rest of the way to t.
func spinUntil(t time.Time) {
	for time.Until(t) > 0 {
	}
}
