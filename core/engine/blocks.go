package engine

import "downbeat.dev/core/sched"

// blocks is a partition's memory for requests (sched.Options.Memory), cut from blocks on huge pages: the
// queues of a thousand models are touched in no order, and on small pages each touch would cost a
// walk of the page table. A partition's lock guards it.
type blocks struct {
	size int // requests of a block
	rest []sched.Request
}

// blockRequests is 12 MiB of address space; pages become real as they are used.
const blockRequests = 1 << 18

// newBlocks returns the memory of a partition with at most liveMax requests at a time: one that may have few takes small blocks, as
// a simulator that starts thousands of engines would else clear blocks most of the time.
func newBlocks(liveMax int) *blocks { return &blocks{size: min(blockRequests, max(liveMax/4, 64))} }

func (b *blocks) takeRequests(n int) []sched.Request {
	if n > b.size/4 {
		return make([]sched.Request, n)
	}
	if len(b.rest) < n {
		b.rest = make([]sched.Request, b.size)
		hugePages(b.rest)
	}
	piece := b.rest[:n:n]
	b.rest = b.rest[n:]
	return piece
}
