package usage

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns this process's processor time since its start; on systems that do not report it, the elapsed
// time.
func ProcessorTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// ThreadTime returns the calling thread's processor time since its start, for goroutines with runtime.LockOSThread;
// on systems that do not report it, the elapsed time.
func ThreadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
