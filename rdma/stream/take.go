package stream

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// turnBytes is how much the loop reads from one peer before it turns to the next.
const turnBytes = 1 << 20

// TakeIn reads the socket's data, up to the bound for one peer's turn, through buf.
func (r *Reader) TakeIn(buf []byte) error {
	for taken := 0; taken < turnBytes; {
		var due *Chain
		head := 0

		// Between chains the header of the oldest one is due: the bytes after it can go directly to the chain's
		// destinations.
		if !r.placeBytes() {
			head = r.buffered(len(buf))
			r.vec.addPiece(buf[:head])
			if due = r.dueChain(head); due != nil {
				r.expectChain(due, len(buf)-head)
			}
		}

		asked := r.vec.countBytes()
		n, errno := r.receive()
		if errno == unix.EAGAIN || errno == unix.EINTR {
			return nil
		}
		if errno != 0 {
			return fmt.Errorf("%w: read: %w", ErrPeerLost, errno)
		}
		if n == 0 {
			return fmt.Errorf("%w: %w", ErrPeerLost, io.EOF)
		}

		taken += n
		r.heard.Store(r.now.Load())
		if err := r.countSorted(buf, head, n, due); err != nil {
			return err
		}
		// Another read of an empty socket would waste a system call.
		if n < asked || r.isSettled() && n < len(buf) {
			return nil // most likely the socket is empty; otherwise it becomes readable again
		}
	}
	return nil
}

// isSettled reports whether no answer is due and no frame is incomplete.
func (r *Reader) isSettled() bool {
	return !r.chains.Pending() && len(r.rest) == 0 && r.message.left == 0
}

// buffered returns how many bytes of frames to read at once: while a long data frame is due, no more than its head,
// so that its bytes need not be copied out of the frame buffer.
func (r *Reader) buffered(all int) int {
	if !r.chains.Pending() || r.landing.skip > 0 {
		return all
	}

	oldest := r.chains.nextDue()
	if oldest == nil || oldest.bytes <= CopyMax {
		return all
	}
	return max(1, min(all, HeaderBytes+len(oldest.reads)-len(r.rest)))
}

// dueChain returns the chain whose data frame should come next, if a long one is due and begins here, and its
// destinations may temporarily hold bytes of another frame.
func (r *Reader) dueChain(head int) *Chain {
	if !r.chains.Pending() || len(r.rest) > 0 || r.landing.skip > 0 {
		return nil
	}

	oldest := r.chains.nextDue()
	if oldest == nil || oldest.again || oldest.givenUp || oldest.bytes <= CopyMax || head != HeaderBytes+len(oldest.reads) {
		return nil
	}
	return oldest
}

// expectChain adds the chain's destinations after the frame's head, at most bound bytes: in the common case one call
// reads both, and the bytes are already in place.
func (r *Reader) expectChain(chain *Chain, bound int) {
	for i := range chain.reads {
		dst := chain.reads[i].Dst
		if r.vec.isFull() || len(dst) > bound {
			return
		}
		r.vec.addPiece(dst)
		bound -= len(dst)
	}
}

// countSorted counts n bytes: head of them in buf, the others in the destinations of placeBytes or expectChain. If another
// frame came than expected, its bytes are moved out of the destinations again.
func (r *Reader) countSorted(buf []byte, head, n int, due *Chain) error {
	if head == 0 {
		return r.landed(n)
	}

	if n <= head {
		return r.Feed(buf[:n])
	}

	// The guess was right: the header is that of the chain, and the bytes after it are in place …
	spilled := n - head
	if f, err := ParseFrame(buf); err == nil && f.Kind == KindData && f.ID == due.id && allOK(buf[HeaderBytes:head]) {
		if err := r.Feed(buf[:head]); err != nil {
			return err
		}
		return r.landed(spilled)
	}

	// … or another frame came: collect its bytes from the destinations, and process them in order.
	rest := buf[head:n]
	for i := 0; len(rest) > 0; i++ {
		rest = rest[copy(rest, due.reads[i].Dst):]
	}
	return r.Feed(buf[:n])
}

func allOK(statuses []byte) bool {
	for _, s := range statuses {
		if s != StatusOK {
			return false
		}
	}
	return true
}

// receive reads into the vector without waiting, and keeps descriptors.
func (r *Reader) receive() (int, unix.Errno) {
	if !r.unix {
		return r.vec.readPieces(r.fd)
	}
	return r.vec.readFiles(r.fd, &r.files)
}

// TakeFile returns the first descriptor not taken yet. The caller closes it.
func (r *Reader) TakeFile() (fd int, ok bool) { return r.files.takeFile() }

// CloseFiles closes the descriptors that were not taken.
func (r *Reader) CloseFiles() { r.files.closeFiles() }

// ReadTLS reads once from a TLS connection, which may wait, through buf. came is called when the read has ended,
// before its bytes are processed.
func (r *Reader) ReadTLS(s io.Reader, buf []byte, came func()) error {
	if r.placeBytes() {
		n, err := s.Read(r.vec.firstPiece())
		came()
		r.heard.Store(r.now.Load())
		return errors.Join(err, r.landed(n))
	}

	n, err := s.Read(buf[:r.buffered(len(buf))])
	came()
	r.heard.Store(r.now.Load())
	return errors.Join(err, r.Feed(buf[:n]))
}
