package engine

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sleeper sleeps in the kernel with nanosecond timers and can be woken from any thread. The Go runtime's own timers
// are half a millisecond late or more.
type sleeper struct {
	fd  int
	one [8]byte
}

func (s *sleeper) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("engine: eventfd: %w", err)
	}
	s.fd, s.one = fd, [8]byte{1}
	return nil
}

func (s *sleeper) closeTimer() { unix.Close(s.fd) }

// precise asks the kernel not to coalesce this thread's timers with others. The thread must be locked.
func (s *sleeper) precise() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// sleep returns true after d, or false when woken. Only the loop calls it.
func (s *sleeper) sleep(d time.Duration) (whole bool) {
	ts := unix.NsecToTimespec(int64(d))
	fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, _, _ := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if int(n) > 0 {
		var b [8]byte
		_, _ = unix.Read(s.fd, b[:])
	}
	return n == 0
}

// wake ends the present sleep, or the next one. Any goroutine may call it.
func (s *sleeper) wake() { _, _ = unix.Write(s.fd, s.one[:]) }
