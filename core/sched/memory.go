package sched

import "math/bits"

// memory is what queues and batches lie in: pieces of 2^k requests. A queue fills a piece, the batch
// takes it along, and it comes back when the batch is done. Of those that came back the latest goes out
// first: it is nearest.
type memory struct {
	more func(n int) []Request // nil: the heap
	free [32][][]Request       // by k
}

const pieceMin = 16

// take returns a piece of at least n requests of any content.
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

// give takes a piece back; none is nothing.
func (m *memory) give(piece []Request) {
	if len(piece) > 0 {
		k := bits.Len(uint(len(piece) - 1))
		m.free[k] = append(m.free[k], piece)
	}
}
