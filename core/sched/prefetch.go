package sched

// nearModels is the number of models whose queues stay in a core's cache.
const nearModels = 512

// Far reports whether overlapping the cache misses of requests is worthwhile: see PrefetchLines.
func (p *Partition) Far() bool { return len(p.models) >= p.near }

// PrefetchMost is the number of requests for which to call PrefetchLines at a time. Each request needs some six cache lines,
// with those that PrefetchLines does not name, and those of twice as many should still be in a first-level cache of 32 KiB
// when Admit needs them.
const PrefetchMost = 16

// PrefetchLines returns words in the two cache lines for which Admit will most likely wait: a model's second line, and that
// of its next request; nil: there is none. While models are Far, a driver that accepts a burst fetches the lines of the
// next PrefetchMost requests before it accepts the present ones, so that the cache misses overlap.
func (x FoundModel) PrefetchLines() (gaps, next *uint32) {
	m := x.m
	if m == nil {
		return nil, nil
	}

	// The place is computed here, because the compiler would not inline PrefetchLines with a call to a method of the queue.
	if at := m.q.head + uint32(m.q.n); int(at) < len(m.q.buf) {
		next = &m.q.buf[at].Origin
	}
	return &m.gaps[0], next
}
