package model

import "math"

// Descriptor says where a request's input lies: in whose registered memory, and where in it. It is opaque to the
// scheduler, which carries it from a Submit to an Execute; the data plane makes and resolves what In has not been
// applied to (rdma.Remote has the same fields, so that one converts into the other).
type Descriptor struct {
	Key    uint64 // remote key of the buffer; short-lived, scoped to what was offered
	Offset uint32 // bytes from the buffer's start, below BufferMax
	Length uint32 // bytes, at most BufferMax
}

// What a descriptor can name.
const (
	BufferMax = 1 << offsetBits                      // bytes of a buffer
	NodesMax  = 1<<(32-offsetBits+32-lengthBits) - 2 // nodes beside the frontend that sends the request, numbered from 1
)

// Composed is no node's number. It says that the input lies with the frontend and begins with a table, wire.Composed, of where
// each of the model's inputs lies: some may lie with backends that have computed them.
const Composed = NodesMax + 1

// A buffer's size leaves the high bits of both numbers to the node, so that a request that names one takes no more room than
// any other, in a queue and on the wire. A peer that knows nothing of nodes finds a place that no buffer has, and refuses.
const (
	offsetBits = 26
	lengthBits = offsetBits + 1
)

// In returns d with the number of the node whose memory it is about, at most NodesMax, or Composed; 0: the frontend's that sends
// the request.
func (d Descriptor) In(node uint32) Descriptor {
	d.Offset |= node >> (32 - lengthBits) << offsetBits
	d.Length |= node << lengthBits
	return d
}

// Node returns what In was given.
func (d Descriptor) Node() uint32 {
	return d.Offset>>offsetBits<<(32-lengthBits) | d.Length>>lengthBits
}

// InNode returns d as its node knows it.
func (d Descriptor) InNode() Descriptor {
	d.Offset &= 1<<offsetBits - 1
	d.Length &= 1<<lengthBits - 1
	return d
}

// Part returns where length bytes lie that begin from bytes into d. A part that would begin beyond 4 GiB begins at the
// last byte that can be named, which no buffer reaches: the peer refuses to read there.
func (d Descriptor) Part(from, length int) Descriptor {
	begin := min(uint64(d.Offset)+uint64(from), math.MaxUint32)
	return Descriptor{Key: d.Key, Offset: uint32(begin), Length: uint32(length)}
}
