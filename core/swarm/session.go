package swarm

import (
	"iter"

	"downbeat.dev/core/wire"
)

// session is what a frontend's and a backend's session with the engine do each in its own way; link is what they share.
type session interface {
	noteFollow(m wire.Follow) // the scheduler learns whom the peer obeys
	noteBreak()               // the trace gets the break of the link
	closeInEngine()           // the engine and the checker end the session
	noteDeath()               // the checker ends the session, whose scheduler has died
}

// links returns the scheduler's latest links with all peers, frontends' first.
func (s *scheduler) links() iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for _, f := range s.c.fronts {
			if l := f.links[s.index]; l != nil && !yield(l) {
				return
			}
		}
		for _, b := range s.c.backs {
			if l := b.links[s.index]; l != nil && !yield(l) {
				return
			}
		}
	}
}

// isObeyed reports whether the peer obeys the scheduler of this session.
func (l *link) isObeyed() bool { return l.p.obeyed >= 0 && l.p.links[l.p.obeyed] == l }

// isOrphaned reports whether the scheduler of the session has died, so that its engine cannot be called.
func (l *link) isOrphaned() bool { return l.sch.dead || l.sch.life != l.life }

// tellLead tells the peer who leads.
func (l *link) tellLead() {
	if sch := l.sch; sch.candidate != nil && !l.p.old {
		m := wire.Lead{Epoch: sch.epoch, Leads: sch.leads, GPUs: uint32(sch.connectedGPUs())}
		l.p.c.sendReliably(l, fromEngine, func() { l.p.noteLead(sch.index, m) })
	}
}

// breakLink cuts the connection. The engine and the peer each notice after their own delay, and the peer connects again.
func (l *link) breakLink(engine, peer Duration) {
	l.up = false
	l.noteBreak()
	l.p.c.after(engine, l.close)
	l.reconnectAfter(peer)
}

// dropLink ends the connection because the peer's process has ended, which the engine notices after a delay.
func (l *link) dropLink() {
	l.up = false
	l.p.c.after(l.p.c.within(0, 200e6), l.close)
}

// reconnectAfter lets the peer notice the lost connection after a delay and connect again.
func (l *link) reconnectAfter(after Duration) {
	p := l.p
	l.up = false
	p.c.after(after, func() {
		if p.links[l.sch.index] == l && !p.dead {
			p.noteLost(l.sch.index)
			p.connect(l.sch)
		}
	})
}

// close ends the session on the engine's side. A paused scheduler ends it when it resumes: a paused process does not
// notice a lost link.
func (l *link) close() {
	c := l.p.c
	switch {
	case l.closed:
		return
	case !l.isOrphaned() && l.sch.pausedUntil > c.now:
		c.at(l.sch.pausedUntil, l.close)
		return
	}

	l.up = false
	l.closeInEngine()
}
