package dispatch

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time of this process, so that neighbours on the machine do not count.
func cpuTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
