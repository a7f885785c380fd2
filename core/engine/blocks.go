package engine

import "downbeat.dev/core/sched"

// blocks is a partition's memory for requests (sched.Options.Memory), cut from blocks on huge pages: the
// queues of a thousand models are touched in no order, and on small pages each touch would cost a
// walk of the page table. A partition's lock guards it.
type blocks struct{ rest []sched.Request }

const blockRequests = 1 << 18 // 12 MiB of address space; pages become real as they are used

func (b *blocks) take(n int) []sched.Request {
	if n > blockRequests/4 {
		return make([]sched.Request, n)
	}
	if len(b.rest) < n {
		b.rest = make([]sched.Request, blockRequests)
		hugePages(b.rest)
	}
	piece := b.rest[:n:n]
	b.rest = b.rest[n:]
	return piece
}
