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

// Buffer is an input in registered memory, from which backends read directly. One goroutine owns it at a time; during
// Infer it belongs to the request. Make one for each concurrent request and reuse it.
type Buffer struct {
	mem    *rdma.Buffer
	remote rdma.Remote // of the last request
	size   int
	of     *memory
	model  *Model      // the model whose input it is, if NewInput made it
	busy   atomic.Bool // a request is using it
	lent   bool        // mem belongs to another process
}

// memory counts the users of the registered memory: the client and each of its buffers. The last one closes the data
// plane, so that a buffer in use while the client closes stays mapped.
type memory struct {
	node  *rdma.Node
	users atomic.Int64
}

// addUser adds a user; false if the last one has gone.
func (m *memory) addUser() bool {
	for {
		n := m.users.Load()

		// At zero the data plane is closed or closing: no user may be added any more.
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

// Buffer returns registered memory of n bytes with undefined content. It may serve any number of requests, one at a
// time, until Free. The error is ErrClosed, or wraps ErrInvalid, ErrTooLarge or ErrNoMemory.
func (c *Client) Buffer(n int) (*Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("%w: buffer of %d bytes: must be 0 or more", ErrInvalid, n)
	}

	if !c.memory.addUser() {
		return nil, ErrClosed
	}

	// At least one byte, so that every buffer has memory of its own.
	mem, err := c.node.Alloc(max(n, 1))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("buffer of %d bytes: %w", n, err), c.memory.dropUser())
	}
	return &Buffer{mem: mem, size: n, of: &c.memory}, nil
}

// Lend returns a Buffer over memory of another process, such as a shared memory object mapped here. Backends of this
// process read it directly, without a copy. It must stay mapped until Free. The other process may change it, or
// truncate it: then the request ends with InputUnavailable. Bytes and Resize must not be called. The model must have
// tensors of fixed sizes and keep no sequences; requests to other models wrap ErrInvalid. ok is false if some backend
// is in another process: then copy the bytes into a Buffer instead.
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

// isLent reports whether the memory belongs to another process.
func (b *Buffer) isLent() bool { return b != nil && b.lent }

// Bytes returns the input: tensors in the order of the model's inputs, row-major, little-endian, without the batch
// dimension; each element of a BYTES tensor is a 4-byte length and its bytes.
func (b *Buffer) Bytes() []byte { return b.mem.Bytes()[:b.size] }

// Resize sets the length, up to the buffer's original size; for BYTES inputs of varying size.
func (b *Buffer) Resize(n int) error {
	if n < 0 || n > len(b.mem.Bytes()) {
		return fmt.Errorf("%w: resize to %d bytes: must be within 0 and %d", ErrInvalid, n, len(b.mem.Bytes()))
	}
	b.size = n
	return nil
}

// Free ends all reads and returns the memory; a second Free does nothing. Bytes and Resize panic after it.
func (b *Buffer) Free() {
	if b.mem != nil {
		b.mem.Free()
		b.mem = nil
		_ = b.of.dropUser() // Close reports the data plane's error, unless it came earlier
	}
}

// offerInput lets backends read the buffer and returns its descriptor. With later set it only reserves the
// descriptor; publish makes it readable.
func (b *Buffer) offerInput(later bool) model.Descriptor {
	// The key stays secret until the buffer is filled: no backend can read it before.
	if later {
		b.remote = b.mem.Reserve()
	} else {
		b.remote = b.mem.Offer()
	}
	return model.Descriptor(b.remote).Part(0, b.size)
}

func (b *Buffer) publishKey() { b.mem.Publish(b.remote) }

// withdrawOffer ends the offer and waits until no backend reads, which takes as long as one read. If the only backend
// that knew of it has answered, there is no read that the data plane cannot see.
func (b *Buffer) withdrawOffer(answered bool) {
	if answered {
		b.mem.WithdrawAnswered()
	} else {
		b.mem.Withdraw()
	}
}

// resultPool keeps the buffers for outputs, by size class of powers of two.
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
