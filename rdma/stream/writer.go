package stream

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/memory"
)

// writeBound is how many bytes one flush writes before the loop turns to the next peer.
const writeBound = 1 << 20

// Options say what a Writer writes to and whom it asks.
type Options struct {
	Mu     *sync.Mutex            // the stream's lock; given up during system calls
	FD     int                    // a socket that does not block, which the Writer closes; unused with TLS
	TLS    net.Conn               // written to by RunTLS; nil without TLS
	Now    *atomic.Int64          // a clock in ns that may lag by some ms
	Copied *atomic.Int64          // bytes of all copies that Detach makes, of all Writers that share it
	Notice func(write bool) error // has somebody call Writable when the socket takes more, or no more; unused with TLS
}

// Writer is what waits for the other end, and this end of the socket. Whoever has something to send writes, or leaves it
// to the one who is writing.
type Writer struct {
	o    Options
	kick chan struct{} // for RunTLS
	vec  vector        // of the one who is writing
	head [HeaderBytes]byte

	queue   queue
	err     error         // why the stream failed
	writing bool          // somebody is in a write call, without the lock
	corked  bool          // the reader is taking in frames and will flush after them
	armed   bool          // Notice was asked for
	ended   bool          // the reader has let go of the stream
	closed  bool          // the socket is closed
	wrote   time.Duration // last progress
}

// NewWriter returns a Writer; it needs no lock.
func NewWriter(o Options) *Writer {
	w := &Writer{o: o, queue: queue{copied: o.Copied}}
	if o.TLS != nil {
		w.kick = make(chan struct{}, 1)
	}
	return w
}

// Err is why the stream failed, nil while it lives.
func (w *Writer) Err() error { return w.err }

// Runs is the number of pieces that wait.
func (w *Writer) Runs() int { return w.queue.waiting() }

// Bytes is how many bytes wait.
func (w *Writer) Bytes() int { return w.queue.bytes }

// Owned is how many of the bytes that wait are copies: what the queue costs in memory.
func (w *Writer) Owned() int { return w.queue.owned }

// Referred is the number of pieces that wait and are an offered buffer's.
func (w *Writer) Referred() (n int) {
	for _, r := range w.queue.runs[w.queue.head:] {
		if r.pin.Holds() {
			n++
		}
	}
	return n
}

// Reserve returns n ≤ 32 KiB contiguous bytes at the queue's end for the caller to fill.
func (w *Writer) Reserve(n int) []byte { return w.queue.reserve(n) }

// Copy queues a frame and a copy of its body.
func (w *Writer) Copy(f Frame, body ...[]byte) {
	f.Append(w.queue.reserve(HeaderBytes)[:0])
	for _, part := range body {
		w.queue.copyIn(part)
	}
}

// Refer queues bytes that pin holds. The pin is released when they are written or given up.
func (w *Writer) Refer(b []byte, pin memory.Pin) { w.queue.refer(b, pin) }

// Own queues b, which the caller gives away; the descriptor of file, if that is not nil, travels beside it.
func (w *Writer) Own(b []byte, file *memory.Segment) { w.queue.own(b, file) }

// Busy tells whether what is queued now must wait, so that a copy of it costs no more than what it would replace.
func (w *Writer) Busy() bool {
	return w.writing || w.corked || w.o.TLS != nil || w.queue.waiting() > 0
}

// Cork keeps what is queued until Uncork: its caller has several frames to take in, and answers leave together.
func (w *Writer) Cork() { w.corked = true }

// Uncork ends Cork and writes.
func (w *Writer) Uncork() {
	w.corked = false
	w.Flush()
}

// Writable is called when the socket takes more.
func (w *Writer) Writable() {
	w.armNotice(false)
	w.Flush()
}

// armNotice asks for a notice when the socket takes more, or that there be none.
func (w *Writer) armNotice(on bool) {
	if w.armed == on || w.ended || w.o.TLS != nil {
		return
	}

	w.armed = on
	if on {
		w.wrote = w.turnTime()
	}
	if err := w.o.Notice(on); err != nil {
		w.Fail(fmt.Errorf("%w: epoll: %w", ErrPeerLost, err))
	}
}

func (w *Writer) turnTime() time.Duration { return time.Duration(w.o.Now.Load()) }

// Flush writes what is queued, unless somebody is writing already: they will take it along.
func (w *Writer) Flush() {
	if w.err != nil {
		return
	}
	if w.o.TLS != nil {
		w.wakeTLS()
		return
	}
	if w.writing || w.corked || w.armed {
		return
	}

	for bound := writeBound; w.queue.waiting() > 0 && w.err == nil; {
		if bound <= 0 {
			w.armNotice(true)
			return
		}

		file := w.vec.gather(&w.queue, bound)
		n, again := w.writeVector(file)
		if !again {
			break
		}
		w.queue.consume(n)
		bound -= n
	}
	w.closeIfEnded()
}

// writeVector writes once. It reports false if there is no sense in writing on.
func (w *Writer) writeVector(file *memory.Segment) (n int, again bool) {
	// The lock is given up for the system call; writing keeps others out of the socket.
	w.writing = true
	w.o.Mu.Unlock()
	n, errno := w.vec.write(w.o.FD, file)
	w.o.Mu.Lock()
	w.writing = false

	switch errno {
	case 0:
		w.wrote = w.turnTime()
		return n, true
	case unix.EINTR:
		return 0, true
	case unix.EAGAIN:
		w.armNotice(true)
	default:
		w.Fail(fmt.Errorf("%w: write: %w", ErrPeerLost, errno))
	}
	return 0, false
}

// WriteParts writes a frame from the parts of its body themselves, at most runsMax-1, and queues a copy of what the socket
// did not take. The Writer is not Busy.
func (w *Writer) WriteParts(f Frame, parts [][]byte) {
	f.Append(w.head[:0])
	w.vec.resetPieces()
	w.vec.addPiece(w.head[:])
	for _, p := range parts {
		w.vec.addPiece(p)
	}

	// Others may have queued meanwhile; what is left of this frame goes before theirs.
	n, _ := w.writeVector(nil)
	if rest := HeaderBytes + int(f.Body) - n; rest > 0 && w.err == nil {
		w.queueRest(parts, n, rest)
		w.armNotice(true)
	}

	w.closeIfEnded()
	if w.queue.waiting() > 0 && !w.armed {
		w.Flush()
	}
}

// queueRest makes what WriteParts could not write the first in the queue: the last rest bytes, behind done ones.
func (w *Writer) queueRest(parts [][]byte, done, rest int) {
	// The parts are their owner's again when WriteParts returns, so what is left of them is copied.
	left := append(make([]byte, 0, rest), w.head[min(done, HeaderBytes):]...)
	done -= min(done, HeaderBytes)
	for _, p := range parts {
		left = append(left, p[min(done, len(p)):]...)
		done -= min(done, len(p))
	}
	w.queue.putFirst(left)
}

// PartsMax is how many parts WriteParts takes.
const PartsMax = runsMax - 1

// Stalled tells whether queued bytes have not moved for limit.
func (w *Writer) Stalled(now, limit time.Duration) bool {
	return w.queue.waiting() > 0 && now-w.wrote > limit
}

// Detach replaces queued bytes of b by a copy, so that b's owner may write b. What a system call is taking from b at this
// moment stays pinned: the caller looks again. The stream fails if all copies together would have more than limit bytes.
func (w *Writer) Detach(b *memory.Buffer, limit int64) {
	// A plain socket is written to from b itself, without the lock. TLS is written to from a copy.
	if w.writing && w.o.TLS == nil || w.err != nil {
		return
	}
	if !w.queue.detach(b, limit) {
		w.Fail(fmt.Errorf("%w: it has not taken what it asked for, and %d MiB were kept for slow peers", ErrPeerLost, limit>>20))
	}
}

// Fail ends the stream for err, unless it has failed before: its reader sees the end and lets go of it.
func (w *Writer) Fail(err error) {
	if w.err != nil {
		return
	}
	// A plain socket is closed only by End: a number that is given back too early is another file's.
	w.err = err
	if w.o.TLS != nil {
		w.closeTLS()
	} else if !w.closed {
		unix.Shutdown(w.o.FD, unix.SHUT_RDWR)
	}
}

// End fails the stream for err and closes the socket as soon as nobody writes to it. The reader calls it last.
func (w *Writer) End(err error) {
	w.Fail(err)
	w.ended = true
	w.closeIfEnded()
}

// closeIfEnded gives back what the last writer used.
func (w *Writer) closeIfEnded() {
	if !w.ended || w.writing || w.closed {
		return
	}

	w.closed = true
	w.queue.discardAll()
	if w.o.TLS != nil {
		close(w.kick)
		return
	}
	unix.Close(w.o.FD)
}

// closeTLS closes the connection under TLS. TLS's own Close would first write a farewell, and wait up to 5 s for
// a peer that takes nothing, with the lock held.
func (w *Writer) closeTLS() {
	if s, ok := w.o.TLS.(*tls.Conn); ok {
		s.NetConn().Close()
		return
	}
	w.o.TLS.Close()
}
