package sched

// nearModels is the number of models whose queues stay in a core's cache.
const nearModels = 2048

// Far reports whether overlapping the cache misses of requests is worthwhile: see Prefetch.
func (p *Partition) Far() bool { return len(p.models) >= p.near }

// PrefetchMost is the number of requests for which to call Prefetch at a time. Each request needs some six cache lines, with
// those that Prefetch does not read, and all should still be in a first-level cache of 32 KiB when Admit needs them.
const PrefetchMost = 16

// Prefetch reads the memory that Admit will need of a model: its first two cache lines and the line of its next request.
// A driver that accepts a burst while models are Far first calls it for PrefetchMost requests, so that the cache misses
// overlap. The result has no meaning.
func (p *Partition) Prefetch(id ModelID) uint32 {
	m, _ := p.find(id)
	if m == nil {
		return 0
	}

	// The place is computed here, because the compiler would not inline Prefetch with a call to a method of the queue.
	next := m.q.head + uint32(m.q.n)
	if int(next) == len(m.q.buf) {
		return 0
	}
	return m.gaps[0] + m.q.buf[next].Origin
}
