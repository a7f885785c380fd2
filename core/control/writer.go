package control

import (
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"downbeat.dev/core/wire"
)

// writer coalesces frames for one connection. A goroutine that finds the connection idle writes at once without
// blocking. During a write others append; the flusher goroutine writes what the socket does not take. Only the
// flusher blocks. A peer with more than WriteQueueMax bytes waiting is cut off.
type writer struct {
	conn    net.Conn
	limit   int
	version uint16          // version of the written messages; 0: this protocol's
	raw     syscall.RawConn // nil: only the flusher writes (TLS)
	kick    chan struct{}   // capacity 1: the flusher has work, or the writer closed
	done    chan struct{}   // closed when the flusher has returned

	mu      sync.Mutex
	corked  bool   // until the handshake's answer precedes it
	writing bool   // a goroutine owns out
	pending []byte // under mu
	err     error  // under mu; set once

	out  []byte                // owned by the goroutine that set writing
	left []byte                // the part of out not yet written; likewise
	try  func(fd uintptr) bool // one non-blocking write, of left
}

func newWriter(conn net.Conn, limit int) *writer {
	w := &writer{conn: conn, limit: limit, kick: make(chan struct{}, 1), done: make(chan struct{})}

	// Only a plain socket can be written without blocking; TLS cannot.
	if c, ok := conn.(syscall.Conn); ok {
		w.raw, _ = c.SyscallConn()
	}
	w.try = func(fd uintptr) bool {
		n, _ := writeOnce(fd, w.left) // the flusher gets the error again
		w.left = w.left[max(0, n):]
		return true
	}
	go w.flushRest()
	return w
}

// sendAll appends messages, encoded by enc.
func sendAll[T any](w *writer, m []T, enc func([]byte, []T) []byte) error {
	w.mu.Lock()
	if w.err != nil {
		defer w.mu.Unlock()
		return w.err
	}

	// Encoded under the lock, directly into the buffer: no copy, and frames never interleave.
	before := len(w.pending)
	w.pending = enc(w.pending, m)
	w.translateFrom(before)
	return w.flushPending()
}

// sendErr is sendAll for messages that the encoder may refuse.
func sendErr[T any](w *writer, m []T, enc func([]byte, []T) ([]byte, error)) error {
	w.mu.Lock()
	if w.err != nil {
		defer w.mu.Unlock()
		return w.err
	}

	// A message that cannot be encoded leaves pending as it was.
	b, err := enc(w.pending, m)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	before := len(w.pending)
	w.pending = b
	w.translateFrom(before)
	return w.flushPending()
}

// translateFrom translates the appended frames to the peer's version. mu is held.
func (w *writer) translateFrom(from int) {
	if w.version != 0 && w.version != wire.Version {
		w.pending = append(w.pending[:from], wire.SetVersion(w.pending[from:], w.version)...)
	}
}

// uncorkWith puts first in front of everything sent so far, and releases it.
func (w *writer) uncorkWith(first []byte) error {
	w.mu.Lock()
	if w.version != 0 && w.version != wire.Version {
		first = wire.SetVersion(first, w.version)
	}

	w.pending = append(append(make([]byte, 0, len(first)+len(w.pending)), first...), w.pending...)
	w.corked = false
	return w.flushPending()
}

// flushPending is called with mu held and releases it.
func (w *writer) flushPending() error {
	// The limit is checked first, so that it holds even while another goroutine writes.
	if len(w.pending) > w.limit {
		w.failWith(fmt.Errorf("%w: %d bytes wait for it, at most %d", ErrSlowPeer, len(w.pending), w.limit))
		err := w.err
		w.mu.Unlock()
		return err
	}

	// The goroutine that is writing will write these bytes as well.
	if w.writing || w.corked {
		w.mu.Unlock()
		return nil
	}

	w.writing = true
	for round := 0; len(w.pending) > 0; round++ {
		// After a few rounds the flusher takes over, so that a sender does not write for the others without end.
		if w.raw == nil || round == 4 {
			w.wakeFlusher() // writing stays true: the flusher continues
			w.mu.Unlock()
			return nil
		}

		// The lock is released during the system call: others queue meanwhile, and this goroutine writes for them as
		// well.
		w.swapPending()
		w.mu.Unlock()
		if err := w.raw.Write(w.try); err != nil {
			w.left = w.out // closed: the flusher finds the reason
		}

		w.mu.Lock()
		if len(w.left) > 0 {
			w.wakeFlusher()
			w.mu.Unlock()
			return nil
		}
	}

	w.writing = false
	w.mu.Unlock()
	return nil
}

// swapPending moves pending to out. mu is held, writing is ours.
func (w *writer) swapPending() {
	// The two buffers alternate. One that a burst has enlarged is dropped, so that no session keeps its memory.
	spare := w.out[:0]
	if cap(spare) > bufferBytesKeep {
		spare = nil
	}
	w.out, w.pending = w.pending, spare
	w.left = w.out
}

func (w *writer) wakeFlusher() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// flushRest writes the remaining bytes, blocking.
func (w *writer) flushRest() {
	defer close(w.done)
	for range w.kick {
		w.mu.Lock()
		for w.err == nil && w.writing {
			if len(w.left) == 0 {
				if len(w.pending) == 0 {
					w.writing = false
					break
				}
				w.swapPending()
			}

			w.mu.Unlock()

			// The deadline limits the peer's time to make room, not the session.
			err := w.conn.SetWriteDeadline(time.Now().Add(writeMax))
			if err == nil {
				_, err = w.conn.Write(w.left)
			}
			w.left = nil

			w.mu.Lock()
			if err != nil {
				w.failWith(err)
			}
		}

		closed := w.err != nil
		w.mu.Unlock()
		if closed {
			return
		}
	}
}

// failWith records why the connection failed and closes it. mu is held.
func (w *writer) failWith(err error) {
	// The first reason stays: later failures follow from it.
	if w.err == nil {
		w.err = err
		w.conn.Close()
		w.wakeFlusher()
	}
}

// closeFor closes the connection for the reason err.
func (w *writer) closeFor(err error) {
	w.mu.Lock()
	w.failWith(err)
	w.mu.Unlock()
}

// closeReason returns why the connection was closed; instead if it was not.
func (w *writer) closeReason(instead error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return instead
}
