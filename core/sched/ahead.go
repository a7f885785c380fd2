package sched

// nearModels is the number of models whose queues stay in a core's cache.
const nearModels = 2048

// Far reports whether overlapping the cache misses of requests is worthwhile: see Ahead.
func (p *Partition) Far() bool { return len(p.models) >= p.near }

// Ahead reads the memory that Admit will need of a model: its first two cache lines and the line of its next request.
// A driver that accepts a burst while models are Far first calls it for every request, so that the cache misses
// overlap. The result has no meaning.
func (p *Partition) Ahead(id ModelID) uint32 {
	if m, _ := p.find(id); m != nil && !m.q.full() {
		return m.gaps[0] + m.q.at(int(m.q.n)).Origin
	}
	return 0
}
