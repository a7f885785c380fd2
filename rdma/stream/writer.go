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

// Options configure a Writer.
type Options struct {
	Mu     *sync.Mutex            // the stream's lock; released during system calls
	FD     int                    // a non-blocking socket, which the Writer closes; unused with TLS
	TLS    net.Conn               // written to by RunTLS; nil without TLS
	Now    *atomic.Int64          // a clock in ns that may lag by some ms
	Copied *atomic.Int64          // bytes of all copies that Detach makes, shared by several Writers
	Notice func(write bool) error // switches calls of Writable on or off, for when the socket accepts more; unused with TLS
}

// Writer holds the data for the other end, and this end of the socket. A goroutine with data to send writes it, or
// leaves it to the goroutine that is already writing.
type Writer struct {
	o    Options
	kick chan struct{} // for RunTLS
	vec  vector        // of the goroutine that is writing
	head [HeaderBytes]byte

	queue   queue
	err     error         // why the stream failed
	writing bool          // a goroutine is in a write call, without the lock
	corked  bool          // the reader is processing frames and will flush after them
	armed   bool          // Notice is switched on
	ended   bool          // the reader no longer uses the stream
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

// Err returns the stream's error; nil while it works.
func (w *Writer) Err() error { return w.err }

// Runs returns the number of waiting pieces.
func (w *Writer) Runs() int { return w.queue.waiting() }

// Bytes returns the number of waiting bytes.
func (w *Writer) Bytes() int { return w.queue.bytes }

// Owned returns how many of the waiting bytes are copies: the queue's memory cost.
func (w *Writer) Owned() int { return w.queue.owned }

// Referred returns the number of waiting pieces in offered buffers.
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

// Refer queues bytes that pin holds. The pin is released when they are written or discarded.
func (w *Writer) Refer(b []byte, pin memory.Pin) { w.queue.queueOffered(b, pin) }

// Own queues b, which the caller hands over; the descriptor of file, if not nil, is sent with it.
func (w *Writer) Own(b []byte, file *memory.Segment) { w.queue.queueOwned(b, file) }

// Busy reports whether data queued now must wait, so that a copy of it costs no more than the data itself.
func (w *Writer) Busy() bool {
	return w.writing || w.corked || w.o.TLS != nil || w.queue.waiting() > 0
}

// Cork holds queued data until Uncork: the caller processes several frames, and the answers leave together.
func (w *Writer) Cork() { w.corked = true }

// Uncork ends Cork and writes.
func (w *Writer) Uncork() {
	w.corked = false
	w.Flush()
}

// Writable is called when the socket accepts more.
func (w *Writer) Writable() {
	w.armNotice(false)
	w.Flush()
}

// armNotice switches the notice that the socket accepts more on or off.
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

// Flush writes the queue, unless a goroutine is already writing: that one also writes the new data.
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

	// Other links of the loop wait meanwhile, so one call writes only so much.
	for bound := writeBound; w.queue.waiting() > 0 && w.err == nil; {
		if bound <= 0 {
			w.armNotice(true)
			return
		}

		file := w.vec.fillFrom(&w.queue, bound)
		n, again := w.writeVector(file)
		if !again {
			break
		}
		w.queue.consume(n)
		bound -= n
	}
	w.closeIfEnded()
}

// writeVector writes once. It returns false for again if further writes are useless.
func (w *Writer) writeVector(file *memory.Segment) (n int, again bool) {
	// Release the lock for the system call; writing keeps other goroutines from the socket.
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

// WriteParts writes a frame directly from the parts of its body, at most runsMax-1, and queues a copy of the bytes
// that the socket did not accept. The Writer must not be Busy.
func (w *Writer) WriteParts(f Frame, parts [][]byte) {
	f.Append(w.head[:0])
	w.vec.resetPieces()
	w.vec.addPiece(w.head[:])
	for _, p := range parts {
		w.vec.addPiece(p)
	}

	// Others may have queued data meanwhile; the rest of this frame goes before it.
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

// queueRest puts the part that WriteParts could not write first in the queue: the last rest bytes, after done ones.
func (w *Writer) queueRest(parts [][]byte, done, rest int) {
	// The caller owns the parts again when WriteParts returns, so copy the rest of them.
	left := append(make([]byte, 0, rest), w.head[min(done, HeaderBytes):]...)
	done -= min(done, HeaderBytes)
	for _, p := range parts {
		left = append(left, p[min(done, len(p)):]...)
		done -= min(done, len(p))
	}
	w.queue.putFirst(left)
}

// PartsMax is the largest number of parts for WriteParts.
const PartsMax = runsMax - 1

// Stalled reports whether queued bytes have not moved for limit.
func (w *Writer) Stalled(now, limit time.Duration) bool {
	return w.queue.waiting() > 0 && now-w.wrote > limit
}

// Detach replaces queued bytes of b by a copy, so that b's owner may write b. Bytes that a system call is reading
// from b stay pinned: the caller checks again. The stream fails if all copies together would exceed limit bytes.
func (w *Writer) Detach(b *memory.Buffer, limit int64) {
	// A plain socket is written directly from b, without the lock. TLS is written from a copy.
	if w.writing && w.o.TLS == nil || w.err != nil {
		return
	}
	if !w.queue.detach(b, limit) {
		w.Fail(fmt.Errorf("%w: it has not taken what it asked for, and %d MiB were kept for slow peers", ErrPeerLost, limit>>20))
	}
}

// Fail ends the stream with err, unless it has failed before: its reader sees the end and stops using it.
func (w *Writer) Fail(err error) {
	if w.err != nil {
		return
	}
	// Only End closes a plain socket: a descriptor closed too early may become another file's.
	w.err = err
	if w.o.TLS != nil {
		w.closeTLS()
	} else if !w.closed {
		unix.Shutdown(w.o.FD, unix.SHUT_RDWR)
	}
}

// End fails the stream with err and closes the socket once no goroutine writes to it. The reader calls it last.
func (w *Writer) End(err error) {
	w.Fail(err)
	w.ended = true
	w.closeIfEnded()
}

// closeIfEnded closes the socket after the last write.
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

// closeTLS closes the connection under TLS. TLS's own Close would first write a close message, and wait up to 5 s for
// a peer that reads nothing, with the lock held.
func (w *Writer) closeTLS() {
	if s, ok := w.o.TLS.(*tls.Conn); ok {
		s.NetConn().Close()
		return
	}
	w.o.TLS.Close()
}
