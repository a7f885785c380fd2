package frontend

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"downbeat.dev/core/model"
	"downbeat.dev/rdma"
)

// Buffer is an input in registered memory: backends read it where it lies. One goroutine owns it at
// a time; during Infer it is the request's. Make one per request under way and keep them.
type Buffer struct {
	mem    *rdma.Buffer
	remote rdma.Remote // of the last request
	size   int
	of     *memory
	model  *Model      // whose input it is, if NewInput made it
	busy   atomic.Bool // a request has it
	lent   bool        // mem is another process's
}

// memory counts who may touch the registered memory: the client and each of its buffers. The last
// to go closes the data plane, so that a buffer in use while the client closes stays mapped.
type memory struct {
	node  *rdma.Node
	users atomic.Int64
}

// addUser adds a user; false when the last has gone.
func (m *memory) addUser() bool {
	for {
		n := m.users.Load()

		// At zero the data plane is closed or closing: nobody may come in after the last has left.
		if n == 0 {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *memory) dropUser() error {
	if m.users.Add(-1) > 0 {
		return nil
	}
	return m.node.Close()
}

// Buffer returns registered memory of n bytes, of undefined content. It may be used for any number
// of requests, one at a time, until Free gives it back. The error is ErrClosed, or wraps ErrInvalid,
// ErrTooLarge or ErrNoMemory.
func (c *Client) Buffer(n int) (*Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%w: buffer of %d bytes: must be 0 or more", ErrInvalid, n)
	}

	if !c.memory.addUser() {
		return nil, ErrClosed
	}

	// One byte at least, so that every buffer has memory of its own.
	mem, err := c.node.Alloc(max(n, 1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("buffer of %d bytes: %w", n, err), c.memory.dropUser())
	}
	return &Buffer{mem: mem, size: n, of: &c.memory}, nil
}

// Lend returns a Buffer of bytes that are another process's, such as a shared memory object that is mapped here: backends of this
// process read them where they lie, and nothing is copied in between. They must stay mapped until Free; the other process may
// change them, or take them away: then the request ends with InputUnavailable. Bytes and Resize must not be called, and the
// model must have tensors of fixed sizes, and keep no sequences: other models' requests wrap ErrInvalid. ok is false where some backend is in another process: then the bytes are better copied into a Buffer.
func (c *Client) Lend(bytes []byte) (b *Buffer, ok bool) {
	if !c.memory.addUser() {
		return nil, false
	}
	mem, ok := c.node.Lend(bytes)
	if !ok {
		_ = c.memory.dropUser() // as in Free
		return nil, false
	}
	return &Buffer{mem: mem, size: len(bytes), of: &c.memory, lent: true}, true
}

// isLent tells whether the bytes are another process's.
func (b *Buffer) isLent() bool { return b != nil && b.lent }

// Bytes is the input: tensors in the order of the model's inputs, row-major, little-endian, without
// the batch dimension; each element of a BYTES tensor is a 4-byte length and its bytes.
func (b *Buffer) Bytes() []byte { return b.mem.Bytes()[:b.size] }

// Resize sets the length, up to what the buffer was made with; for BYTES inputs of varying size.
func (b *Buffer) Resize(n int) error {
	if n < 0 || n > len(b.mem.Bytes()) {
		return fmt.Errorf("%w: resize to %d bytes: must be within 0 and %d", ErrInvalid, n, len(b.mem.Bytes()))
	}
	b.size = n
	return nil
}

// Free ends all reading and gives the memory back; a second Free does nothing. Bytes and Resize
// panic after it.
func (b *Buffer) Free() {
	if b.mem != nil {
		b.mem.Free()
		b.mem = nil
		_ = b.of.dropUser() // what the data plane's end was is Close's to tell, unless Close came before
	}
}

// offerInput lets backends read the buffer, or names what publish will let them read, and says where.
func (b *Buffer) offerInput(later bool) model.Descriptor {
	// A later offer keeps the key back until the buffer is filled: no backend reads it before.
	if later {
		b.remote = b.mem.Reserve()
	} else {
		b.remote = b.mem.Offer()
	}
	return model.Descriptor(b.remote).Part(0, b.size)
}

func (b *Buffer) publishKey() { b.mem.Publish(b.remote) }

// withdrawOffer ends the offer and waits until no backend reads, which takes as long as one read. Where
// the only backend that was told has answered, there is no read that the data plane cannot see.
func (b *Buffer) withdrawOffer(answered bool) {
	if answered {
		b.mem.WithdrawAnswered()
	} else {
		b.mem.Withdraw()
	}
}

// resultPool keeps the buffers that outputs are copied to, by size class of powers of two.
type resultPool struct{ classes [32]sync.Pool }

func (p *resultPool) getMemory(n int) *[]byte {
	class := bits.Len(uint(max(n, 64) - 1))
	if s, ok := p.classes[class].Get().(*[]byte); ok {
		return s
	}
	s := make([]byte, 1<<class)
	return &s
}

func (p *resultPool) putMemory(s *[]byte) { p.classes[bits.Len(uint(len(*s)-1))].Put(s) }
