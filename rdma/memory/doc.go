// Package memory is the registered memory of the data plane. A Pool hands out Buffers of size classes. A Buffer that
// is offered has a key, and a peer that knows the key may read its bytes. A Mapped segment is another process's
// memory, read here without that process's help. The package knows nothing of peers, sockets or devices.
//
// A Segment is one memfd with slots of one size class. A slot's entry lies directly before its bytes: the live key
// and the length. The entry alone tells a reader whether the bytes were valid:
//
//	M1  A key is never used twice. So a key that is still live after the bytes were taken proves that they were
//	    offered all the while.
//	M2  An owner writes a buffer only when no offer of it is live, no reader that it serves is left, and no READ that
//	    it cannot see may still be in progress (see quarantine).
//	M3  A segment that some peer was given stays mapped until the pool is closed.
//	M4  Peers can map a segment only for reading, and it cannot shrink under them: kernel seals ensure both.
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

// Remote locates offered bytes in a peer's registered memory; it travels in model.Descriptor. A reader may narrow it
// (a larger Offset, a smaller Length) to read a part.
type Remote struct {
	Key    uint64
	Offset uint32 // bytes from the buffer's start
	Length uint32 // bytes
}

// A key consists of a nonce, a segment's number and a slot's number, from the high bits to the low ones.
const (
	slotBits    = 14
	segmentBits = 12
	nonceBits   = 64 - slotBits - segmentBits

	SlotsMax    = 1 << slotBits    // of a segment
	SegmentsMax = 1 << segmentBits // of a pool
)

// Flags of an offer in its key's nonce.
const (
	lateKey = uint64(1) << 63 // it was announced before it was made (Reserve)
	lentKey = uint64(1) << 62 // its bytes do not belong to the pool (Lend)
)

// NoKey is never a live key: it is the last slot of the last segment under a nonce that no pool draws.
const NoKey = uint64(1)<<(slotBits+segmentBits) | SegmentsMax<<slotBits - 1

// Slot returns the number of the remote's slot in its segment.
func (r Remote) Slot() int { return int(r.Key & (SlotsMax - 1)) }

// Segment returns the number of the remote's segment in its owner's pool.
func (r Remote) Segment() int { return int(r.Key >> slotBits & (SegmentsMax - 1)) }

// Late reports whether the offer was announced before it was made. A READ under such a key may have begun before the
// bytes were written, so its reader also checks the entry first.
func (r Remote) Late() bool { return r.Key&lateKey != 0 }

// Lent reports whether the bytes lie in no segment: only their owner can read them.
func (r Remote) Lent() bool { return r.Key&lentKey != 0 }

// NarrowOffset converts a 64-bit offset to an Offset. One that does not fit lies beyond every buffer, as does its
// clamped value.
func NarrowOffset(offset uint64) uint32 { return uint32(min(offset, math.MaxUint32)) }
