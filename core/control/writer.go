package control

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

// writer coalesces frames for one connection. Whoever finds the connection idle writes at once
// without blocking; while a write is under way others append, and what the socket does not take is
// written by the flusher goroutine. Nobody but the flusher blocks. A peer that lets WriteQueueMax
// bytes pile up is cut off.
type writer struct {
	conn  net.Conn
	limit int
	raw   syscall.RawConn // nil: only the flusher writes (TLS)
	kick  chan struct{}   // capacity 1: the flusher has work, or the writer closed
	done  chan struct{}   // closed when the flusher has returned

	mu      sync.Mutex
	corked  bool   // until the handshake's answer is in front
	writing bool   // someone owns out
	pending []byte // under mu
	err     error  // under mu; set once

	out  []byte                // owned by whoever set writing
	left []byte                // the part of out not written; likewise
	try  func(fd uintptr) bool // one write that does not block; it uses left
}

func newWriter(conn net.Conn, limit int) *writer {
	w := &writer{conn: conn, limit: limit, kick: make(chan struct{}, 1), done: make(chan struct{})}
	if c, ok := conn.(syscall.Conn); ok {
		w.raw, _ = c.SyscallConn()
	}
	w.try = func(fd uintptr) bool {
		n, _ := writeOnce(fd, w.left) // an error shows again when the flusher writes
		w.left = w.left[max(0, n):]
		return true
	}
	go w.flusher()
	return w
}

// send appends messages as enc writes them.
func send[T any](w *writer, m []T, enc func([]byte, []T) []byte) error {
	w.mu.Lock()
	if w.err != nil {
		defer w.mu.Unlock()
		return w.err
	}
	w.pending = enc(w.pending, m)
	return w.flush()
}

// sendErr is send for messages that may be refused by the encoder.
func sendErr[T any](w *writer, m []T, enc func([]byte, []T) ([]byte, error)) error {
	w.mu.Lock()
	if w.err != nil {
		defer w.mu.Unlock()
		return w.err
	}
	b, err := enc(w.pending, m)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	w.pending = b
	return w.flush()
}

// uncork puts first before everything that was sent so far and lets it go.
func (w *writer) uncork(first []byte) error {
	w.mu.Lock()
	w.pending = append(append(make([]byte, 0, len(first)+len(w.pending)), first...), w.pending...)
	w.corked = false
	return w.flush()
}

// flush is called with mu held and releases it.
func (w *writer) flush() error {
	if len(w.pending) > w.limit {
		w.fail(fmt.Errorf("%w: %d bytes wait for it, at most %d", ErrSlowPeer, len(w.pending), w.limit))
		err := w.err
		w.mu.Unlock()
		return err
	}
	if w.writing || w.corked {
		w.mu.Unlock()
		return nil
	}
	w.writing = true
	for round := 0; len(w.pending) > 0; round++ {
		if w.raw == nil || round == 4 {
			w.wake() // writing stays true: the flusher goes on
			w.mu.Unlock()
			return nil
		}
		w.swap()
		w.mu.Unlock()
		if err := w.raw.Write(w.try); err != nil {
			w.left = w.out // closed: the flusher finds out why
		}
		w.mu.Lock()
		if len(w.left) > 0 {
			w.wake()
			w.mu.Unlock()
			return nil
		}
	}
	w.writing = false
	w.mu.Unlock()
	return nil
}

// swap takes what is pending out. mu is held, writing is ours.
func (w *writer) swap() {
	spare := w.out[:0]
	if cap(spare) > bufferBytesKeep {
		spare = nil
	}
	w.out, w.pending = w.pending, spare
	w.left = w.out
}

func (w *writer) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// flusher writes what is left over, blocking.
func (w *writer) flusher() {
	defer close(w.done)
	for range w.kick {
		w.mu.Lock()
		for w.err == nil && w.writing {
			if len(w.left) == 0 {
				if len(w.pending) == 0 {
					w.writing = false
					break
				}
				w.swap()
			}
			w.mu.Unlock()
			err := w.conn.SetWriteDeadline(time.Now().Add(QuietMax))
			if err == nil {
				_, err = w.conn.Write(w.left)
			}
			w.left = nil
			w.mu.Lock()
			if err != nil {
				w.fail(err)
			}
		}
		closed := w.err != nil
		w.mu.Unlock()
		if closed {
			return
		}
	}
}

// fail records why the connection is given up and closes it. mu is held.
func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
		w.conn.Close()
		w.wake()
	}
}

// close gives the connection up for the reason err.
func (w *writer) close(err error) {
	w.mu.Lock()
	w.fail(err)
	w.mu.Unlock()
}

// reason returns why the connection was given up, or instead when it was not.
func (w *writer) reason(instead error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return instead
}
