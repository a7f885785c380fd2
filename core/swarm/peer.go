package swarm

import (
	"downbeat.dev/core/control"
	"downbeat.dev/core/wire"
)

// peer is the common part of frontends and backends: a link to each scheduler, one of which it obeys.
type peer struct {
	c           *Cluster
	index       int                // among the frontends or the backends
	old         bool               // speaks wire.VersionMin
	clockRate   float64            // its clock's rate
	dead        bool               // a frontend that crashed, a backend until it starts again
	links       []*link            // by scheduler: of the latest session; nil: none yet
	standings   []control.Standing // by scheduler
	obeyed      int                // index of a scheduler; -1: none
	highest     uint64             // highest epoch that any scheduler has reported
	followed    wire.Follow
	barredUntil []Time // by scheduler: no session with it can be opened until then

	open     func(sch *scheduler) // opens a session
	switched func()               // called when the peer obeys another scheduler, or none
}

func newPeer(c *Cluster, index int) peer {
	n := len(c.schedulers)
	return peer{c: c, index: index, old: !c.calm && c.chance(c.o.Skew), clockRate: c.drawClockRate(), links: make([]*link, n),
		standings: make([]control.Standing, n), obeyed: -1, barredUntil: make([]Time, n)}
}

func (p *peer) connectAll() {
	for _, s := range p.c.schedulers {
		p.connect(s)
	}
}

// connect opens a session with a scheduler as soon as one can be opened.
func (p *peer) connect(sch *scheduler) {
	i := sch.index
	if p.dead || p.links[i] != nil && p.links[i].up {
		return
	}

	if !p.mayOpen(sch) {
		p.c.after(retryEvery, func() { p.connect(sch) })
		return
	}

	p.open(sch)
}

// newLink returns the link of a new session of this peer.
func (p *peer) newLink(sch *scheduler, s session) link {
	return link{session: s, p: p, sch: sch, life: sch.life, up: true}
}

// closeLinks closes all sessions of the peer. A peer that was absent while a scheduler was there, or one of the previous
// version of which a standby wants none, has no session with that scheduler.
func (p *peer) closeLinks() {
	for _, l := range p.links {
		if l != nil {
			l.close()
		}
	}
}

// noteSession notes a new session. A scheduler of the previous version knows nothing of leaders.
func (p *peer) noteSession(l *link) {
	i, alone := l.sch.index, len(p.standings) == 1
	p.links[i] = l

	// A single scheduler leads without saying so, and an old peer obeys any scheduler.
	p.standings[i] = control.Standing{Up: true, Leads: alone || p.old}
	p.chooseLeader()
	l.tellLead()
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
		p.tellFollow(i, p.followed)
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
			p.tellFollow(i, now)
		}
	}
}

// tellFollow tells scheduler i which scheduler the peer obeys.
func (p *peer) tellFollow(i int, m wire.Follow) {
	if l := p.links[i]; l != nil && l.sch.candidate != nil && !p.old {
		p.c.sendReliably(l, toEngine, func() {
			l.noteFollow(m)
			l.sch.hearReports()
		})
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
