package model

import "math"

// Descriptor says where a request's input lies in its frontend's registered memory. It is opaque to the scheduler,
// which carries it from a Submit to an Execute; the data plane makes it (rdma.Remote has the same fields, so that one
// converts into the other) and resolves it.
type Descriptor struct {
	Key    uint64 // remote key of the buffer; short-lived, scoped to what was offered
	Offset uint32 // bytes from the buffer's start; a buffer is far smaller than 4 GiB
	Length uint32 // bytes
}

// Part returns where length bytes lie that begin from bytes into d. A part that would begin beyond 4 GiB begins at the
// last byte that can be named, which no buffer reaches: the peer refuses to read there.
func (d Descriptor) Part(from, length int) Descriptor {
	begin := min(uint64(d.Offset)+uint64(from), math.MaxUint32)
	return Descriptor{Key: d.Key, Offset: uint32(begin), Length: uint32(length)}
}
