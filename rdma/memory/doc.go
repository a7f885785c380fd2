// Package memory is the registered memory of the data plane. A Pool hands out Buffers of size classes; a Buffer that
// is offered has a key, and whoever names the key may read its bytes; a Mapped segment is another process's memory,
// read here without its help. Nothing in this package knows of peers, sockets or devices.
//
// A Segment is one memfd with slots of one size class. Directly before the bytes of a slot stands its entry: the live
// key and the length. The entry is all that a reader needs to know whether its bytes were good:
//
//	M1  A key is never used twice. So a key that still stands after the bytes were taken proves that they were
//	    offered all the while.
//	M2  An owner writes a buffer only when no offer of it is live, no reader that it serves is left, and no READ that
//	    it cannot see may still be under way (see quarantine).
//	M3  A segment that some peer was given stays mapped until the pool is closed.
//	M4  Peers can map a segment for reading alone, and it cannot shrink under them: seals of the kernel see to both.
//
// Buffers and the pool may be used from any goroutine, one Buffer by one owner at a time.
package memory

import (
	"errors"
	"math"
)

// Errors of this package; package rdma shows them to its users.
var (
	ErrInvalid  = errors.New("rdma: invalid argument")
	ErrTooLarge = errors.New("rdma: larger than the limit")
	ErrNoMemory = errors.New("rdma: registered memory exhausted")
	ErrClosed   = errors.New("rdma: closed")
	ErrProtocol = errors.New("rdma: peer broke the protocol")
)

// BufferMax is the size of the largest buffer, in bytes.
const BufferMax = 64 << 20

// Remote says where offered bytes lie in a peer's registered memory; it travels in model.Descriptor.
// A reader may narrow it (a larger Offset, a smaller Length) to read a part.
type Remote struct {
	Key    uint64
	Offset uint32 // bytes from the buffer's start
	Length uint32 // bytes
}

// A key is a nonce, the number of a segment and the number of a slot in it, from the high bits to the low ones.
const (
	slotBits    = 14
	segmentBits = 12
	nonceBits   = 64 - slotBits - segmentBits

	SlotsMax    = 1 << slotBits    // of a segment
	SegmentsMax = 1 << segmentBits // of a pool
)

// What marks an offer in its key's nonce.
const (
	lateKey = uint64(1) << 63 // it was named before it was made (Reserve)
	lentKey = uint64(1) << 62 // its bytes are not the pool's (Lend)
)

// NoKey is nobody's: it names the last slot of the last segment under a nonce that no pool draws.
const NoKey = uint64(1)<<(slotBits+segmentBits) | SegmentsMax<<slotBits - 1

// Slot is the number of the slot that a remote names in its segment.
func (r Remote) Slot() int { return int(r.Key & (SlotsMax - 1)) }

// Segment is the number of the segment that a remote names in its owner's pool.
func (r Remote) Segment() int { return int(r.Key >> slotBits & (SegmentsMax - 1)) }

// Late tells whether the offer was named before it was made. A READ under such a key may have begun before the bytes
// were written, so its reader looks at the entry first as well.
func (r Remote) Late() bool { return r.Key&lateKey != 0 }

// Lent tells whether the bytes lie in no segment: they must be asked of their owner.
func (r Remote) Lent() bool { return r.Key&lentKey != 0 }

// NarrowOffset makes an Offset of one that came in 64 bits. One that does not fit lies beyond every buffer, and so does
// the one that stands for it.
func NarrowOffset(offset uint64) uint32 { return uint32(min(offset, math.MaxUint32)) }
