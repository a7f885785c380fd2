package sim

import (
	"downbeat.dev/core/control"
	"downbeat.dev/core/wire"
)

// peer is what frontends and backends have in common: a link with each scheduler, of which they obey one.
type peer struct {
	c         *Cluster
	old       bool               // speaks wire.VersionMin
	standings []control.Standing // by scheduler
	obeyed    int                // scheduler; -1: none
	highest   uint64             // epoch that any scheduler has told
	told      wire.Follow
	barred    []Time // by scheduler: until when no session with it can be opened

	switched func()                     // another scheduler is obeyed from now on, or none
	follows  func(i int, f wire.Follow) // tells scheduler i
}

func newPeer(c *Cluster) peer {
	n := len(c.schedulers)
	return peer{c: c, old: !c.calm && c.chance(c.o.Skew), standings: make([]control.Standing, n), obeyed: -1, barred: make([]Time, n)}
}

// opened notes a session with scheduler i. One of the version before knows nothing of leaders.
func (p *peer) opened(i int) {
	alone := len(p.standings) == 1

	// A lone scheduler leads without saying so, and an old peer takes any scheduler for the leader.
	p.standings[i] = control.Standing{Up: true, Leads: alone || p.old}
	p.chooseLeader()
}

// lost notes that a session has ended.
func (p *peer) lost(i int) {
	p.standings[i].Up, p.standings[i].Leads = false, false
	p.chooseLeader()
}

// led notes what scheduler i tells of itself.
func (p *peer) led(i int, l wire.Lead) {
	first := p.standings[i].Epoch == 0 && !p.standings[i].Leads

	p.standings[i].Leads, p.standings[i].Epoch = l.Leads, l.Epoch
	p.chooseLeader()

	// It may have missed what the others were told.
	if first {
		p.follows(i, p.told)
	}
}

// chooseLeader obeys whom the production code would obey.
func (p *peer) chooseLeader() {
	was := p.obeyed
	p.obeyed, p.highest = control.Obeyed(p.standings, was, p.highest)
	if p.obeyed != was {
		p.switched()
	}

	if now := (wire.Follow{Epoch: p.highest, Alive: p.obeyed >= 0}); now != p.told {
		p.told = now
		for i := range p.standings {
			p.follows(i, now)
		}
	}
}

// mayOpen says whether a session with scheduler i can be opened now.
func (p *peer) mayOpen(s *scheduler) bool {
	switch {
	case s.dead || s.paused > p.c.now || p.barred[s.index] > p.c.now:
		return false
	case p.old && len(p.standings) > 1 && !s.leads:
		return false // a standby refuses peers that would take it for the leader
	}
	return true
}

// retryEvery is how long after a failed attempt a peer connects again.
const retryEvery Duration = 50e6
