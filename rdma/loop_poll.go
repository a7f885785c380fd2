package rdma

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (l *loop) runLoop() {
	defer close(l.done)
	defer l.rest.closeRest()
	defer unix.Close(l.wake)
	for {
		n := l.waitEvents()
		if l.stop.Load() && l.size.Load() == 0 {
			return
		}

		l.node.enterCallbacks()
		for i := range n {
			l.handleEvent(&l.events[i])
		}
		l.node.leaveCallbacks()

		now := l.node.now()
		l.node.turn.Store(int64(now))
		if l.givingUp.Load() && l.givingUp.Swap(false) {
			l.giveUp(now)
		}
		if l.called && !l.node.cfg.Inline || now-l.yielded >= yieldEvery {
			// Goroutines that the completions woke run here first: a wait in the kernel would keep this processor
			// from them until another thread takes it. The loop also yields regularly: from a goroutine that has not
			// yielded for 10 ms, Go takes the processor at its next system call, and then checks every 20 µs whether
			// to do so again.
			runtime.Gosched()
			l.yielded = now
		}
		l.called = false

		if now-l.ticked >= tickEvery {
			l.checkProgress(now)
			l.ticked = now
		}
	}
}

func (l *loop) handleEvent(e *unix.EpollEvent) {
	switch {
	case e.Fd == -2:
		l.node.verbs.takeEvent() // completions are polled for in waitEvents
	case e.Fd < 0:
		var b [8]byte
		// The value means nothing: the loop finds its work where it waits.
		unix.Read(l.wake, b[:])
		if l.node.verbs != nil {
			l.node.verbs.giveUpDoomed()
		}
	default:
		if c := l.connAt(e.Fd); c != nil {
			l.serveSocket(c, e.Events)
		}
	}
}

// serveSocket handles the events of one socket.
func (l *loop) serveSocket(c *conn, events uint32) {
	// Queued frames are written first: the reads that follow may queue more.
	if events&unix.EPOLLOUT != 0 {
		c.out.goOn()
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	if err := c.in.takeIn(l.buf); err != nil {
		l.removeConn(c)
		c.dropLink(err)
	}
}

// checkProgress checks every peer's progress.
func (l *loop) checkProgress(now time.Duration) {
	l.node.enterCallbacks()
	defer l.node.leaveCallbacks()

	// A process that was stopped, or got no processor, finds all its peers silent. Their silence counts from its
	// return: data that they sent meanwhile may not even be in the socket yet, if they share the host.
	if now-l.ticked > absentMin {
		l.back = now
	}

	l.mu.Lock()
	n := len(l.conns)
	l.mu.Unlock()
	for i := range n {
		if c := l.connAt(int32(i)); c != nil {
			c.keepalive.tick(now, l.back)
		}
	}
	if l.first {
		l.node.cutHoarders()
	}
}

// waitEvents returns the number of events. While several sockets are busy it polls first: a raw call does not give up
// the processor that Go lent to this thread, so a busy loop never has to win it back.
func (l *loop) waitEvents() int {
	if l.hot || l.node.verbs != nil {
		if n := l.pollSockets(); n > 0 {
			if l.node.verbs != nil {
				l.node.enterCallbacks()
				l.node.verbs.poll()
				l.node.leaveCallbacks()
			}
			return n
		}
	}

	// Nothing is busy: poll the completion queue for a while, or sleep until an event.
	l.hot = false
	if l.node.verbs != nil && l.pollVerbs() {
		return 0
	}

	n := l.rest.waitEvents(l)
	l.hot = n > 1
	return n
}

// pollSockets returns the number of events that are ready now.
func (l *loop) pollSockets() int {
	base := uintptr(unsafe.Pointer(&l.events[0]))
	n, _, _ := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.ep), base, uintptr(len(l.events)), 0, 0, 0)
	return max(0, int(n))
}

// pollVerbs polls the completion queue: for a while after the last completion if reads are in progress, then it
// requests an event. It reports whether to poll once more before waiting.
func (l *loop) pollVerbs() bool {
	d := l.node.verbs
	l.node.enterCallbacks()
	defer l.node.leaveCallbacks()

	// Completions come in bursts, but sockets must not wait for the end of one.
	took := false
	for range pollsPerTurn {
		if d.poll() > 0 {
			took = true
		} else if !d.busy() {
			break
		}
	}
	if took {
		l.idle = 0
		return true
	}

	// A short read completes sooner than this thread could sleep and wake.
	if d.busy() {
		now := l.node.now()
		if l.idle == 0 {
			l.idle = now
		}
		if now-l.idle < d.pollingTime() {
			return true
		}
	}

	// A completion before armEvent raises no event: one more poll finds it.
	d.armEvent()
	if d.poll() > 0 {
		l.idle = 0
		return true
	}
	return false
}
