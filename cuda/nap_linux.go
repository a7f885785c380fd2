package cuda

import (
	"time"

	"golang.org/x/sys/unix"
)

// napInKernel sleeps in the kernel, which wakes within tens of microseconds where Go's timers take up to a millisecond.
func napInKernel(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // an interrupted nap is only shorter
}
