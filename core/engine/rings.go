package engine

import (
	"math/bits"

	"downbeat.dev/core/sched"
)

// rings is a partition's memory for queued requests (sched.Rings), cut from blocks on huge pages: the
// queues of a thousand models are touched in no order, and on small pages each touch would cost a
// walk of the page table. A partition's lock guards it.
type rings struct {
	rest []sched.Request       // of the block in use
	free [32][][]sched.Request // by the logarithm of the length
}

const blockRequests = 1 << 18 // 16 MiB of address space; pages become real as they are used

func (r *rings) Take(n int) []sched.Request {
	free := &r.free[bits.TrailingZeros(uint(n))]
	if k := len(*free); k > 0 {
		buf := (*free)[k-1]
		*free = (*free)[:k-1]
		return buf
	}
	if n > blockRequests/4 {
		return make([]sched.Request, n)
	}
	if len(r.rest) < n {
		r.rest = make([]sched.Request, blockRequests)
		hugePages(r.rest)
	}
	buf := r.rest[:n:n]
	r.rest = r.rest[n:]
	return buf
}

func (r *rings) Give(buf []sched.Request) {
	free := &r.free[bits.TrailingZeros(uint(len(buf)))]
	*free = append(*free, buf)
}
