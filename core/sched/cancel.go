package sched

import vocabulary "downbeat.dev/core/model"

// Holds reports whether a request is, or may be, queued: it searches the searchMax earliest deadlines.
func (p *Partition) Holds(id ModelID, r RequestID, origin uint32) bool {
	m, _ := p.find(id)
	return m != nil && (p.early > 0 && p.earlyOf[id].find(r, origin) != nil || p.search(m, r, origin) >= 0 || m.q.len() > searchMax)
}

// search returns the place of a request; -1 if it is not among the searchMax earliest deadlines.
func (p *Partition) search(m *model, r RequestID, origin uint32) int {
	i := m.q.find(r, origin)
	if i < 0 {
		p.stats.Searched += uint64(min(m.q.len(), searchMax))
	} else {
		p.stats.Searched += uint64(i) + 1
	}
	return i
}

// Cancel withdraws a request. true: the request ends here and does not appear in the outputs. In a long queue a
// request that is not among the first is withdrawn later: it ends as a drop with Canceled, or in a batch if one takes
// it first.
func (p *Partition) Cancel(now Time, id ModelID, r RequestID, origin uint32) bool {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return false
	}

	if p.early > 0 && p.cancelEarly(m, r, origin) {
		return true
	}

	// Bound the search, because the caller holds a lock.
	i := p.search(m, r, origin)
	if i < 0 {
		if m.q.len() > searchMax {
			p.sweepFor(m, withdrawal{id: r, origin: origin})
		}
		return false
	}
	m.q.remove(i, &m.priorities)
	p.stats.Canceled++
	p.settleCandidate(now, m, at)
	return true
}

// CancelAll withdraws an origin's requests for a model: each ends as a drop with Canceled; in a long queue this takes
// several calls.
func (p *Partition) CancelAll(now Time, id ModelID, origin uint32) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return
	}
	if p.early > 0 {
		p.cancelAllEarly(m, origin)
	}
	if m.q.len() > searchMax {
		p.sweepFor(m, withdrawal{origin: origin, all: true})
		return
	}

	// A short queue is filtered at once.
	p.stats.Searched += uint64(m.q.len())
	removed := m.q.filter(0, m.q.len(), &m.priorities, func(r *Request) bool {
		if r.Origin == origin {
			p.drop(r, vocabulary.Canceled)
		}
		return r.Origin == origin
	})
	if removed > 0 {
		p.settleCandidate(now, m, at)
	}
}
