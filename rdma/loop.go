package rdma

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// loop serves the sockets of some of a node's peers: it reads, answers, completes, and writes what a socket did not
// take at once. It uses epoll directly rather than the Go runtime's poller: one goroutine turns a batch of ready
// sockets into completions, without waking a goroutine per peer. rest.go describes where it waits.
type loop struct {
	node    *Node
	first   bool // the node's first loop, which also does the work that concerns all peers
	ep      int
	wake    int // eventfd: stop
	buf     []byte
	events  [64]unix.EpollEvent
	ticked  time.Duration
	back    time.Duration // when the loop last returned from an absence, see tick
	yielded time.Duration
	hot     bool          // several sockets were ready at once
	called  bool          // done or Receive was called in this turn
	idle    time.Duration // since when the completion queue has been empty; 0: it is not
	rest    rest
	done    chan struct{}

	givingUp atomic.Bool // some conn's givingUp is set

	mu    sync.Mutex // guards conns and free
	conns []*conn    // index = epoll token
	free  []int
	size  atomic.Int32
	stop  atomic.Bool
}

const (
	loopBuffer   = 256 << 10
	yieldEvery   = 4 * time.Millisecond
	absentMin    = 4 * tickEvery // longer gap between two ticks: the loop was stopped
	pollsPerTurn = 16            // of the completion queue, per look at the sockets
)

// loopsFor is the number of loops of a node. With verbs there is one, because only one may poll the completion queue.
func (n *Node) loopsFor() int {
	if n.verbs != nil {
		return 1
	}
	return streamLoops()
}

// streamLoops is the number of loops of a node without verbs: they share the host with the models.
func streamLoops() int { return max(1, min(4, runtime.NumCPU()/8)) }

func newLoop(n *Node) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}

	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, fmt.Errorf("eventfd: %w", err)
	}

	l := &loop{node: n, first: len(n.loops) == 0, ep: ep, wake: wake, buf: make([]byte, loopBuffer), done: make(chan struct{})}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}); err != nil {
		unix.Close(ep)
		unix.Close(wake)
		return nil, fmt.Errorf("epoll: %w", err)
	}

	// Completions of the device wake the loop like a socket.
	if n.verbs != nil {
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, n.verbs.channel(), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -2}); err != nil {
			unix.Close(ep)
			unix.Close(wake)
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}

	l.rest.openRest(l)
	go l.runLoop()
	return l, nil
}

// addConn starts serving c. With TLS the loop only ticks for it.
func (l *loop) addConn(c *conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop.Load() {
		return ErrClosed
	}

	// A socket's token is its index here; indices are reused, so that the list stays short.
	slot := len(l.conns)
	if k := len(l.free); k > 0 {
		slot, l.free = l.free[k-1], l.free[:k-1]
	} else {
		l.conns = append(l.conns, nil)
	}
	c.socket.loop, c.socket.slot = l, slot
	l.conns[slot] = c

	if c.socket.tls == nil {
		if err := l.controlSocket(unix.EPOLL_CTL_ADD, c, false); err != nil {
			l.conns[slot] = nil
			l.free = append(l.free, slot)
			return err
		}
	}

	l.size.Add(1)
	return nil
}

func (l *loop) controlSocket(op int, c *conn, write bool) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(c.socket.slot)}
	if write {
		e.Events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(l.ep, op, c.socket.fd, &e)
}

// noticeWritable turns the notice of a writable socket on or off. conn.out.mu is held.
func (l *loop) noticeWritable(c *conn, write bool) error {
	return l.controlSocket(unix.EPOLL_CTL_MOD, c, write)
}

// removeConn removes c; its reader calls it before dropLink.
func (l *loop) removeConn(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()

	// The slot may belong to another socket by now.
	if l.conns[c.socket.slot] != c {
		return
	}
	if c.socket.tls == nil {
		unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, c.socket.fd, nil)
	}
	l.conns[c.socket.slot] = nil
	l.free = append(l.free, c.socket.slot)
	l.size.Add(-1)
}

func (l *loop) connAt(slot int32) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slot < 0 || int(slot) >= len(l.conns) {
		return nil
	}
	return l.conns[slot]
}

// closeLoop ends the loop once its last peer is dropped.
func (l *loop) closeLoop() {
	l.mu.Lock()
	l.stop.Store(true)
	l.mu.Unlock()
	l.signalWake()
	<-l.done
}

func (l *loop) signalWake() {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	unix.Write(l.wake, b[:])
}
