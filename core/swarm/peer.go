package swarm

import (
	"downbeat.dev/core/control"
	"downbeat.dev/core/wire"
)

// peer is the common part of frontends and backends: a link to each scheduler, one of which it obeys.
type peer struct {
	c           *Cluster
	old         bool               // speaks wire.VersionMin
	standings   []control.Standing // by scheduler
	obeyed      int                // index of a scheduler; -1: none
	highest     uint64             // highest epoch that any scheduler has reported
	followed    wire.Follow
	barredUntil []Time // by scheduler: no session with it can be opened until then

	switched func()                     // called when the peer obeys another scheduler, or none
	follows  func(i int, f wire.Follow) // sends f to scheduler i
}

func newPeer(c *Cluster) peer {
	n := len(c.schedulers)
	return peer{c: c, old: !c.calm && c.chance(c.o.Skew), standings: make([]control.Standing, n), obeyed: -1, barredUntil: make([]Time, n)}
}

// noteSession notes a session with scheduler i. A scheduler of the previous version knows nothing of leaders.
func (p *peer) noteSession(i int) {
	alone := len(p.standings) == 1

	// A single scheduler leads without saying so, and an old peer obeys any scheduler.
	p.standings[i] = control.Standing{Up: true, Leads: alone || p.old}
	p.chooseLeader()
}

// noteLost notes that a session has ended.
func (p *peer) noteLost(i int) {
	p.standings[i].Up, p.standings[i].Leads = false, false
	p.chooseLeader()
}

// noteLead notes scheduler i's report about its leadership.
func (p *peer) noteLead(i int, l wire.Lead) {
	first := p.standings[i].Epoch == 0 && !p.standings[i].Leads

	p.standings[i].Leads, p.standings[i].Epoch = l.Leads, l.Epoch
	p.chooseLeader()

	// Repeat the peer's own state: this scheduler may have missed it.
	if first {
		p.follows(i, p.followed)
	}
}

// chooseLeader chooses the scheduler to obey with the production code.
func (p *peer) chooseLeader() {
	was := p.obeyed
	p.obeyed, p.highest = control.Obeyed(p.standings, was, p.highest)
	if p.obeyed != was {
		p.switched()
	}

	if now := (wire.Follow{Epoch: p.highest, Alive: p.obeyed >= 0}); now != p.followed {
		p.followed = now
		for i := range p.standings {
			p.follows(i, now)
		}
	}
}

// mayOpen reports whether a session with a scheduler can be opened now.
func (p *peer) mayOpen(s *scheduler) bool {
	switch {
	case s.dead || s.pausedUntil > p.c.now || p.barredUntil[s.index] > p.c.now:
		return false
	case p.old && len(p.standings) > 1 && !s.leads:
		return false // a standby refuses peers that would take it for the leader
	}
	return true
}

// retryEvery is the delay between a failed attempt and the next one.
const retryEvery Duration = 50e6
