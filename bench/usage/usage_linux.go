package usage

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns what this process has taken of the processors since it began; where the system does not say, the time that has passed.
func ProcessorTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// ThreadTime returns what the calling thread has taken of the processors since it began, for goroutines that runtime.LockOSThread keeps on
// theirs; where the system does not say, the time that has passed.
func ThreadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
