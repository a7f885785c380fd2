package rdma

import (
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rest is where an idle loop waits: in the kernel, where its thread keeps one of Go's processors, or in the Go
// runtime's poller, where it keeps none. A loop that keeps one sees the first completion after a pause sooner,
// because its thread need not win a processor back. But if all processors are kept, no goroutine reads a socket until
// Go's monitor looks, up to 10 ms later. So the loops of a process, of all its nodes together, keep at most half of
// its processors, and otherwise none (docs/decisions/0027).
type rest struct {
	file  *os.File        // the loop's epoll descriptor, known to Go's poller
	raw   syscall.RawConn // file's; nil: Go's poller did not accept it
	look  func(uintptr) bool
	found int           // events that look has found
	until time.Duration // node time at which file's deadline is set
}

// loopCount counts the loops of this process.
var loopCount atomic.Int32

// processors is GOMAXPROCS at the start of the process: processors that are added later are for threads that wait in
// the kernel elsewhere.
var processors atomic.Int32

func init() { processors.Store(int32(runtime.GOMAXPROCS(0))) }

// keepsProcessor reports whether a loop waits in the kernel.
func keepsProcessor() bool { return processors.Load() >= 2*loopCount.Load() }

// keepEvery is the longest wait in the kernel. Go's monitor takes the processor of a thread that waits for 10 ms, and
// is woken when the thread returns without one; then it checks every 20 µs for some milliseconds. Eight peers whose
// monitors do so delay the first fetches after a pause.
const keepEvery = 5 * time.Millisecond

// openRest registers the loop's descriptor with Go's poller.
func (r *rest) openRest(l *loop) {
	loopCount.Add(1)
	r.look = func(uintptr) bool {
		r.found = l.pollSockets()
		return r.found > 0
	}

	// os.File gives a descriptor to the poller if it does not block.
	nonblocking := unix.SetNonblock(l.ep, true) == nil
	r.file = os.NewFile(uintptr(l.ep), "epoll")
	if nonblocking && r.file.SetReadDeadline(time.Time{}) == nil {
		r.raw, _ = r.file.SyscallConn()
	}
}

// closeRest closes the loop's epoll descriptor.
func (r *rest) closeRest() {
	loopCount.Add(-1)
	r.file.Close()
}

// waitEvents waits for events, or until the loop's next tick is due. It returns the number of events.
func (r *rest) waitEvents(l *loop) int {
	due := l.ticked + tickEvery
	if r.raw == nil || keepsProcessor() {
		left := min(due-time.Duration(l.node.turn.Load()), keepEvery)
		n, err := unix.EpollWait(l.ep, l.events[:], max(1, int(left/time.Millisecond)))
		if err != nil {
			return 0
		}
		return n
	}

	// A new deadline costs a timer, so it is set once per tick and not once per wait.
	if r.until != due {
		r.until = due
		r.file.SetReadDeadline(l.node.began.Add(due))
	}

	r.found = 0
	_ = r.raw.Read(r.look) // the error is the deadline: it is time to tick
	return r.found
}
