// Package sicklink is a network path for tests that falls ill: a TCP relay in front of a node of the data plane,
// whose two directions can be slow (so many bytes a second) or dark (nothing passes, and nothing is closed), each
// by itself.
package sicklink

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Rates of a direction, in bytes a second.
const (
	Well = -1 // as fast as it goes
	Dark = 0  // nothing passes
)

const restMax = time.Second / 2 // between two pieces, so that changes of rate are felt

// Link relays connections to one address. Its methods may be called by any goroutine.
type Link struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	in, out int // rates towards the target and from it
	closed  bool
	conns   []net.Conn
}

// Open starts a relay to target, host:port; it ends with the test.
func Open(t testing.TB, target string) *Link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	l := &Link{listener: ln, target: target, in: Well, out: Well}
	l.changed = sync.NewCond(&l.mu)
	l.running.Go(l.acceptAll)
	t.Cleanup(l.closeLink)
	return l
}

// FreeAddr names a port that is free and stays so until the test listens there, twice if it likes: the address is
// one of the many of Linux's loopback, and nobody else's. It is for a node that must be told, before it listens, that
// its peers come through a relay.
func FreeAddr(t testing.TB) string {
	t.Helper()
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}

	ln, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// Addr is what peers dial instead of the target.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Set changes the rates towards the target and from it.
func (l *Link) Set(in, out int) {
	l.mu.Lock()
	l.in, l.out = in, out
	l.mu.Unlock()
	l.changed.Broadcast()
}

func (l *Link) closeLink() {
	l.listener.Close()

	// Connections are closed while the lock is held: one that acceptAll adds later finds closed set.
	l.mu.Lock()
	l.closed = true
	for _, c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.changed.Broadcast()
	l.running.Wait()
}

func (l *Link) acceptAll() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}

		to, err := net.Dial("tcp", l.target)
		if err != nil {
			from.Close()
			continue
		}

		for _, c := range []net.Conn{from, to} { // or the path holds megabytes before it is felt to be slow
			c.(*net.TCPConn).SetReadBuffer(64 << 10)
		}

		l.mu.Lock()
		if l.closed {
			from.Close()
			to.Close()
		}
		l.conns = append(l.conns, from, to)
		l.mu.Unlock()
		l.running.Go(func() { l.relayBytes(to, from, &l.in) })
		l.running.Go(func() { l.relayBytes(from, to, &l.out) })
	}
}

// relayBytes moves bytes at the direction's rate until either end closes.
func (l *Link) relayBytes(to, from net.Conn, rate *int) {
	defer to.Close()
	defer from.Close()

	buf := make([]byte, 32<<10)
	for {
		r, ok := l.awaitPassable(rate)
		if !ok {
			return
		}

		// A slow direction moves a hundredth of a second's bytes at a time, so that the rate is felt as a
		// rate.
		part := buf
		if r != Well {
			part = buf[:max(1, min(len(buf), r/100))]
		}

		n, err := from.Read(part)
		if err != nil {
			return
		}

		// What was read before the path went dark stays here until it is well again.
		if r, ok = l.awaitPassable(rate); !ok {
			return
		}
		if _, err := to.Write(part[:n]); err != nil {
			return
		}
		if r != Well {
			time.Sleep(min(time.Duration(n)*time.Second/time.Duration(r), restMax)) // n may be of a faster time
		}
	}
}

// awaitPassable waits until a direction is not dark. It returns the rate, and whether the link is still open.
func (l *Link) awaitPassable(rate *int) (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for *rate == Dark && !l.closed {
		l.changed.Wait()
	}
	return *rate, !l.closed
}
