package sched

import "math/bits"

// memory provides the memory of queues and batches: pieces of 2^k requests. A queue fills a piece, the batch takes
// it, and it returns when the batch is done. The piece that returned last is used first, because it is in the cache.
type memory struct {
	more func(n int) []Request // nil: the heap
	free [32][][]Request       // by k
}

const pieceMin = 16

// take returns a piece for at least n requests, with arbitrary content.
func (m *memory) take(n int) []Request {
	k := bits.Len(uint(max(n, pieceMin) - 1))
	if free := m.free[k]; len(free) > 0 {
		piece := free[len(free)-1]
		m.free[k] = free[:len(free)-1]
		return piece
	}
	if m.more == nil {
		return make([]Request, 1<<k)
	}
	return m.more(1 << k)
}

// give takes a piece back; an empty piece is ignored.
func (m *memory) give(piece []Request) {
	if len(piece) > 0 {
		k := bits.Len(uint(len(piece) - 1))
		m.free[k] = append(m.free[k], piece)
	}
}
