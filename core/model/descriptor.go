package model

import "math"

// Descriptor locates a request's input: the registered memory and the place in it. The scheduler carries it unread
// from a Submit to an Execute; the data plane makes and resolves it. rdma.Remote has the same fields, so a Descriptor
// without a node (see In) converts to it.
type Descriptor struct {
	Key    uint64 // remote key of the buffer; short-lived, valid for one offer
	Offset uint32 // bytes from the buffer's start, below BufferMax
	Length uint32 // bytes, at most BufferMax
}

// Limits of a descriptor.
const (
	BufferMax = 1 << offsetBits                      // bytes of a buffer
	NodesMax  = 1<<(32-offsetBits+32-lengthBits) - 2 // numbered nodes besides the frontend that sends the request, from 1
)

// Composed is not the number of a node. It means that the input lies with the frontend and begins with a table,
// wire.Composed, that locates each input of the model; some inputs may lie with backends that computed them.
const Composed = NodesMax + 1

// The node's number uses the high bits of offset and length, which a buffer's size leaves free. So a descriptor that
// names a node is no longer than others, in a queue and on the wire. A peer that does not know of nodes reads an
// offset beyond any buffer and refuses it.
const (
	offsetBits = 26
	lengthBits = offsetBits + 1
)

// In returns d with the number of the node that holds the input: at most NodesMax, or Composed. 0 is the frontend
// that sends the request.
func (d Descriptor) In(node uint32) Descriptor {
	d.Offset |= node >> (32 - lengthBits) << offsetBits
	d.Length |= node << lengthBits
	return d
}

// Node returns the number that In stored.
func (d Descriptor) Node() uint32 {
	return d.Offset>>offsetBits<<(32-lengthBits) | d.Length>>lengthBits
}

// InNode returns d without the node's number, as the node itself knows it.
func (d Descriptor) InNode() Descriptor {
	d.Offset &= 1<<offsetBits - 1
	d.Length &= 1<<lengthBits - 1
	return d
}

// Part returns the descriptor of length bytes that start at byte from of d. An offset beyond 4 GiB is clamped to the
// last one that fits the field, which no buffer reaches: the peer refuses the read.
func (d Descriptor) Part(from, length int) Descriptor {
	begin := min(uint64(d.Offset)+uint64(from), math.MaxUint32)
	return Descriptor{Key: d.Key, Offset: uint32(begin), Length: uint32(length)}
}
