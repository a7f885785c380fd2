package dispatch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel stops real-time threads that are busy for more than 95 % of a second, for the rest of it. So a run may
// be busy for at most busyMost, and must rest in between.
const (
	busyMost = 800 * time.Millisecond
	rest     = 100 * time.Millisecond
)

// makeRealtime gives this process's threads real-time priority, so that other processes take no time slices from a
// run, which are longer than any accepted lag. It needs root or CAP_SYS_NICE.
func makeRealtime() (restore func(), err error) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return nil, err
	}
	if before.Policy != unix.SCHED_NORMAL && before.Policy != unix.SCHED_BATCH {
		return func() {}, nil // already real-time
	}

	restore = func() { _ = setPolicy(&unix.SchedAttr{Policy: before.Policy, Nice: before.Nice}) }
	if err := setPolicy(&unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}); err != nil {
		restore()
		return nil, fmt.Errorf("real-time priority (root or CAP_SYS_NICE): %w", err)
	}
	return restore, nil
}

// setPolicy sets the policy of all threads. New threads inherit it. The second pass finds threads started by a thread
// that the first pass had not reached.
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
