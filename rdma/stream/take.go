package stream

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// turnBytes is how much is taken in from one peer before the loop turns to the next.
const turnBytes = 1 << 20

// TakeIn takes in what the socket has, within the bound for one peer's turn, through buf.
func (r *Reader) TakeIn(buf []byte) error {
	for taken := 0; taken < turnBytes; {
		var due *Chain
		head := 0

		// Between chains the header of the oldest one is due: what follows it can go straight to where the chain
		// wants it.
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
		if err := r.sort(buf, head, n, due); err != nil {
			return err
		}
		// Another look at an empty socket is a system call for nothing.
		if n < asked || r.settled() && n < len(buf) {
			return nil // the socket is empty, most likely; it will be readable again if it is not
		}
	}
	return nil
}

// settled tells whether nothing is due and nothing has come in part.
func (r *Reader) settled() bool {
	return !r.chains.Pending() && len(r.rest) == 0 && r.message.left == 0
}

// buffered is how many bytes of frames may be read at once: while a long data frame is due, no more
// than its head, so that its bytes need not be copied out of the frame buffer.
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

// dueChain returns the chain whose data frame should come next, if a long one is due and begins here, and
// its destinations may be touched by what turns out to be another frame.
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

// expectChain adds the chain's destinations behind the frame's head, at most bound bytes: in the common
// case one call reads both, and the bytes lie where they belong.
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

// sort accounts n bytes: head of them in buf, the others where placeBytes or expectChain said. When another
// frame came than was expected, its bytes are taken out of the destinations again.
func (r *Reader) sort(buf []byte, head, n int, due *Chain) error {
	if head == 0 {
		return r.landed(n)
	}

	if n <= head {
		return r.Feed(buf[:n])
	}

	// The guess was right: the header is that of the chain, and what came behind it lies where it belongs …
	spilled := n - head
	if f, err := ParseFrame(buf); err == nil && f.Kind == KindData && f.ID == due.id && allOK(buf[HeaderBytes:head]) {
		if err := r.Feed(buf[:head]); err != nil {
			return err
		}
		return r.landed(spilled)
	}

	// … or something else came: it is brought back from where it was spilled, and read in order.
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

// receive reads into the vector without waiting, keeping descriptors that come along.
func (r *Reader) receive() (int, unix.Errno) {
	if !r.unix {
		return r.vec.readPieces(r.fd)
	}
	return r.vec.readFiles(r.fd, &r.files)
}

// TakeFile takes the descriptor that came first and was not taken yet. The caller closes it.
func (r *Reader) TakeFile() (fd int, ok bool) { return r.files.takeFile() }

// CloseFiles closes the descriptors that nobody took.
func (r *Reader) CloseFiles() { r.files.closeFiles() }

// ReadTLS reads once from a TLS connection, which may wait, through buf. came is called when the read has ended,
// before what it brought is taken in.
func (r *Reader) ReadTLS(s io.Reader, buf []byte, came func()) error {
	if r.placeBytes() {
		n, err := s.Read(r.vec.first())
		came()
		r.heard.Store(r.now.Load())
		return errors.Join(err, r.landed(n))
	}

	n, err := s.Read(buf[:r.buffered(len(buf))])
	came()
	r.heard.Store(r.now.Load())
	return errors.Join(err, r.Feed(buf[:n]))
}
