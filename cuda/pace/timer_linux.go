package pace

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Timer waits for one moment at a time.
type Timer struct {
	file        *os.File // a timerfd, non-blocking: reads park in the runtime's poller
	conn        syscall.RawConn
	arm         func(fd uintptr) // sets the timerfd to spec; kept, so that a wait allocates nothing
	spec        unix.ItimerSpec  // the waiting goroutine's
	ticks       [8]byte
	interrupted atomic.Bool
}

// New returns a timer. The caller must Close it.
func New() (*Timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timerfd: %w", err)
	}
	t := &Timer{file: os.NewFile(uintptr(fd), "timerfd")}
	if t.conn, err = t.file.SyscallConn(); err != nil {
		t.file.Close()
		return nil, fmt.Errorf("open timerfd: %w", err)
	}

	t.arm = func(fd uintptr) { unix.TimerfdSettime(int(fd), 0, &t.spec, nil) }
	return t, nil
}

// Wait returns true at t, or at once if t has passed. After Interrupt or Close it returns false at once, always. It
// allocates nothing.
func (t *Timer) Wait(until time.Time) bool {
	for {
		if t.interrupted.Load() {
			return false
		}

		// The kernel wakes late rather than early, so spin for the last Margin.
		left := time.Until(until) - Margin
		if left <= 0 {
			spinUntil(until)
			return true
		}

		t.spec.Value = unix.NsecToTimespec(int64(left))
		if t.conn.Control(t.arm) != nil {
			return false // closed
		}

		if _, err := t.file.Read(t.ticks[:]); err != nil {
			return false // interrupted or closed
		}
	}
}

// Interrupt ends the wait under way and all later ones.
func (t *Timer) Interrupt() {
	t.interrupted.Store(true)
	// A deadline in the past also ends the read under way.
	t.file.SetReadDeadline(time.Unix(1, 0))
}

// Close interrupts and frees the timer. No Wait may begin after it.
func (t *Timer) Close() error {
	t.Interrupt()
	return t.file.Close()
}
