package engine

import (
	"time"

	"downbeat.dev/core/sched"
)

// Clock is read once per turn of a loop and once per burst of a session. The simulator provides virtual time.
type Clock interface{ Now() sched.Time }

// Monotonic is this process's monotonic clock.
type Monotonic struct{}

var epoch = time.Now()

// Now returns the time since the process started; it is never 0.
func (Monotonic) Now() sched.Time { return sched.Time(time.Since(epoch)) + 1 }
