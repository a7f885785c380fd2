package cuda

import (
	"time"

	"golang.org/x/sys/unix"
)

// napInKernel sleeps in the kernel, which wakes a thread within tens of microseconds. Go's timers may take up to a
// millisecond.
func napInKernel(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal only makes the nap shorter
}
