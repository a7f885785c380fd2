package engine

import "downbeat.dev/core/sched"

// blocks is a partition's memory for requests (sched.Options.Memory), cut from blocks on huge pages. The queues of a
// thousand models are touched in random order; on small pages each touch would cost a page table walk. The
// partition's lock guards it.
type blocks struct {
	size int // requests of a block
	rest []sched.Request
}

// blockRequests makes a block of 12 MiB of address space; pages are allocated on first use.
const blockRequests = 1 << 18

// newBlocks returns the memory of a partition with at most liveMax requests at a time. A small liveMax takes small
// blocks: a simulator that starts thousands of engines would otherwise spend its time clearing blocks.
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
