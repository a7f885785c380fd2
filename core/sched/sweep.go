package sched

import vocabulary "downbeat.dev/core/model"

// A queue may hold a hundred thousand requests, and the caller of a Partition holds a lock meanwhile. So a sweep
// searches a queue longer than searchMax: each Advance checks searchMax requests, for all withdrawals from the queue
// at once, and NextWake asks for the next Advance until the queue's end.

const (
	// searchMax is the largest number of requests that a call checks: some 200 ns.
	searchMax = 256
	// withdrawalsMax is the largest number of withdrawals of one model that wait for the next sweep. Further ones are
	// ignored, as if they came too late.
	withdrawalsMax = 1024
)

// withdrawal names a request, or all requests of an origin.
type withdrawal struct {
	id     RequestID
	origin uint32
	all    bool
}

// sweep passes once through a model's queue. Withdrawals that arrive while it is under way wait for the next one,
// because their requests may lie before its position.
type sweep struct {
	model        ModelID
	wanted, next map[withdrawal]struct{}
}

// sweepFor adds a withdrawal to a model's sweep.
func (p *Partition) sweepFor(m *model, w withdrawal) {
	for i := range p.sweeps {
		if s := &p.sweeps[i]; s.model == m.id {
			if w.all || len(s.next) < withdrawalsMax {
				s.next[w] = struct{}{}
			}
			return
		}
	}

	if len(p.sweeps) == cap(p.sweeps) {
		p.sweeps = append(p.sweeps, sweep{})
	} else {
		p.sweeps = p.sweeps[:len(p.sweeps)+1] // reuse the maps of an ended one
	}
	s := &p.sweeps[len(p.sweeps)-1]
	if s.wanted == nil {
		s.wanted, s.next = map[withdrawal]struct{}{}, map[withdrawal]struct{}{}
	}
	s.model = m.id
	s.wanted[w] = struct{}{}
	m.priorities.swept = 0
}

// stepSweep checks the next requests of the first sweep.
func (p *Partition) stepSweep(now Time) {
	if len(p.sweeps) == 0 {
		return
	}

	s := &p.sweeps[0]
	m, at := p.find(s.model)
	if m == nil {
		clear(s.next)
		p.endSweep()
		return
	}

	// Batches and cancels may have taken requests from before this position, which moves with them.
	from := min(max(0, int(m.priorities.swept)), m.q.len())
	to := min(from+searchMax, m.q.len())
	p.stats.Searched += uint64(to - from)
	removed := m.q.filter(from, to, &m.priorities, func(r *Request) bool {
		_, one := s.wanted[withdrawal{id: r.ID, origin: r.Origin}]
		_, all := s.wanted[withdrawal{origin: r.Origin, all: true}]
		if one || all {
			p.drop(r, vocabulary.Canceled)
		}
		return one || all
	})

	m.priorities.swept = int32(to - removed)
	if to == m.q.len()+removed {
		p.endSweep()
	}
	if removed > 0 {
		p.settleCandidate(now, m, at)
	}
}

// endSweep restarts the first sweep, after the others, if more withdrawals arrived meanwhile; otherwise it ends.
func (p *Partition) endSweep() {
	s := p.sweeps[0]
	clear(s.wanted)
	s.wanted, s.next = s.next, s.wanted
	last := len(p.sweeps) - 1

	// The sweep goes to the end, where its maps are reused.
	copy(p.sweeps, p.sweeps[1:])
	p.sweeps[last] = s

	if len(s.wanted) == 0 {
		p.sweeps = p.sweeps[:last]
	} else if m, _ := p.find(s.model); m != nil {
		m.priorities.swept = 0
	}
}
