package dispatch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel stops real-time threads that are busy for more than 95 % of a second, for the rest of it. So
// nobody may be busy for longer than busyMost at a time, and has to rest in between.
const (
	busyMost = 800 * time.Millisecond
	rest     = 100 * time.Millisecond
)

// makeRealtime makes this process's threads real-time ones: what else the machine runs then takes no time slices
// from a run, which are longer than any lag allowed. It needs root or CAP_SYS_NICE.
func makeRealtime() (restore func(), err error) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return nil, err
	}
	if before.Policy != unix.SCHED_NORMAL && before.Policy != unix.SCHED_BATCH {
		return func() {}, nil // somebody chose it
	}

	restore = func() { _ = setPolicy(&unix.SchedAttr{Policy: before.Policy, Nice: before.Nice}) }
	if err := setPolicy(&unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}); err != nil {
		restore()
		return nil, fmt.Errorf("real-time priority (root or CAP_SYS_NICE): %w", err)
	}
	return restore, nil
}

// setPolicy sets the policy of all threads. New ones inherit it; the second pass finds those that were
// started by a thread which the first had not come to.
func setPolicy(a *unix.SchedAttr) error {
	a.Size = unix.SizeofSchedAttr
	for range 2 {
		all, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}

		for _, t := range all {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}

			// A thread may end between the listing and the call.
			if err := unix.SchedSetAttr(id, a, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}
