package sched

// nearModels is the number of models whose queues stay in a core's cache.
const nearModels = 2048

// Far reports whether overlapping the cache misses of requests is worthwhile: see Ahead.
func (p *Partition) Far() bool { return len(p.models) >= p.near }

// AheadMost is the number of requests to call Ahead for at a time. With the lines that Ahead does not read, each takes some
// six cache lines, and all should still be in a first-level cache of 32 KiB when Admit needs them.
const AheadMost = 16

// Ahead reads the memory that Admit will need of a model: its first two cache lines and the line of its next request.
// A driver that accepts a burst while models are Far first calls it for AheadMost requests, so that the cache misses
// overlap. The result has no meaning.
func (p *Partition) Ahead(id ModelID) uint32 {
	m, _ := p.find(id)
	if m == nil {
		return 0
	}

	// No method of the queue finds the place: with one, the compiler would not make Ahead a part of the driver's loop.
	next := m.q.head + uint32(m.q.n)
	if int(next) == len(m.q.buf) {
		return 0
	}
	return m.gaps[0] + m.q.buf[next].Origin
}
