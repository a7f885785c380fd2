package sched

import vocabulary "downbeat.dev/core/model"

// A queue may hold a hundred thousand requests, and whoever calls a Partition holds a lock meanwhile. What has to be
// looked for in a queue longer than searchMax is looked for by a sweep: each Advance looks at searchMax requests, for
// all that is to be withdrawn from the queue at once, and NextWake asks for the next Advance until the queue's end.

const (
	// searchMax is how many requests a call looks at, at most: some 200 ns.
	searchMax = 256
	// withdrawalsMax is how many requests of one model wait to be withdrawn by the next sweep. What comes beyond is as
	// good as too late.
	withdrawalsMax = 1024
)

// withdrawal names a request, or all requests of an origin.
type withdrawal struct {
	id     RequestID
	origin uint32
	all    bool
}

// sweep goes once through a model's queue. Withdrawals that come when it is under way wait for the next one, since
// what they name may lie where it has been.
type sweep struct {
	model        ModelID
	wanted, next map[withdrawal]struct{}
}

// sweepFor makes a model's sweep look for a withdrawal as well.
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
		p.sweeps = p.sweeps[:len(p.sweeps)+1] // with the maps of one that has ended
	}
	s := &p.sweeps[len(p.sweeps)-1]
	if s.wanted == nil {
		s.wanted, s.next = map[withdrawal]struct{}{}, map[withdrawal]struct{}{}
	}
	s.model = m.id
	s.wanted[w] = struct{}{}
	m.ranks.swept = 0
}

// stepSweep looks at the next requests of the first sweep.
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

	// Batches and cancels may have taken requests from before this place: it moves with them.
	from := min(max(0, int(m.ranks.swept)), m.q.len())
	to := min(from+searchMax, m.q.len())
	p.stats.Searched += uint64(to - from)
	removed := m.q.filter(from, to, &m.ranks, func(r *Request) bool {
		_, one := s.wanted[withdrawal{id: r.ID, origin: r.Origin}]
		_, all := s.wanted[withdrawal{origin: r.Origin, all: true}]
		if one || all {
			p.drop(r, vocabulary.Canceled)
		}
		return one || all
	})

	m.ranks.swept = int32(to - removed)
	if to == m.q.len()+removed {
		p.endSweep()
	}
	if removed > 0 {
		p.settle(now, m, at)
	}
}

// endSweep begins the first sweep anew if more came meanwhile, behind the others; otherwise it is over.
func (p *Partition) endSweep() {
	s := p.sweeps[0]
	clear(s.wanted)
	s.wanted, s.next = s.next, s.wanted
	last := len(p.sweeps) - 1

	// The sweep goes behind the others, where its maps are used again.
	copy(p.sweeps, p.sweeps[1:])
	p.sweeps[last] = s

	if len(s.wanted) == 0 {
		p.sweeps = p.sweeps[:last]
	} else if m, _ := p.find(s.model); m != nil {
		m.ranks.swept = 0
	}
}
