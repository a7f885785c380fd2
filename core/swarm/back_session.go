package swarm

import (
	"slices"

	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// backSession is a backend's session with the engine. It implements engine.BackendPort.
type backSession struct {
	link
	b      *back
	h      *engine.Backend
	closed bool
	told   control.Told        // messages to the scheduler about leadership
	fronts map[uint32]*session // by number, in the scheduler's life that the session belongs to
	// For the checker: batches sent and not done, GPUs as planned, frontends announced.
	flights map[uint64]*order
	gpus    []seenGPU
	peers   map[uint32]bool
}

// obeyedSession returns the session with the obeyed scheduler, or nil.
func (b *back) obeyedSession() *backSession {
	if b.obeyed < 0 {
		return nil
	}

	return b.sessions[b.obeyed]
}

// tellLead tells the backend who leads.
func (s *backSession) tellLead() {
	if sch := s.sch; sch.candidate != nil && !s.b.old {
		m := wire.Lead{Epoch: sch.epoch, Leads: sch.leads, GPUs: uint32(sch.connectedGPUs())}
		s.b.c.sendReliably(&s.link, fromEngine, func() { s.b.noteLead(sch.index, m) })
	}
}

// tellFollow tells scheduler i which scheduler the backend obeys.
func (b *back) tellFollow(i int, m wire.Follow) {
	if s := b.sessions[i]; s != nil && s.sch.candidate != nil && !b.old {
		b.c.sendReliably(&s.link, toEngine, func() {
			s.told.Follows = &m
			if m.Alive {
				s.told.Followed = m.Epoch
			}
			s.sch.hearReports()
		})
	}
}

// breakLink cuts the connection. The engine and the backend each notice after their own delay.
func (s *backSession) breakLink(engine, peer Duration) {
	c := s.b.c
	s.up = false
	c.addMark("backend's link breaks", int64(s.b.index), int64(s.sch.index), 0)
	c.after(engine, s.close)
	s.reconnectAfter(peer)
}

// reconnectAfter lets the backend notice the lost connection after a delay and connect again.
func (s *backSession) reconnectAfter(after Duration) {
	b := s.b
	s.up = false
	b.c.after(after, func() {
		if b.sessions[s.sch.index] == s {
			b.noteLost(s.sch.index)
			b.connect(s.sch)
		}
	})
}

// close ends the session on the engine's side.
func (s *backSession) close() {
	c := s.b.c
	if s.closed || s.closesLater(c, s.close) {
		return
	}
	s.closed, s.up = true, false
	c.addMark("backend closes", int64(s.b.index), int64(len(s.flights)), 0)

	// Update the checker before the engine: closing queues the requests again, and outcomes may be sent at once.
	lost := c.check.beforeBackendClose(s)
	if !s.isOrphaned() {
		s.h.Close()
		c.check.checkLate(lost)
	}
}

// Peers implements engine.BackendPort.
func (s *backSession) Peers(m []wire.Peer) {
	for i := range m {
		s.b.c.check.notePeer(s, &m[i])
	}
}

// Place implements engine.BackendPort.
func (s *backSession) Place(m []wire.Placement) {
	c := s.b.c
	all := slices.Clone(m)
	c.sendReliably(&s.link, fromEngine, func() { s.b.takePlacements(s, all) })
	c.countPlacements(len(m))
}

// Command implements engine.BackendPort.
func (s *backSession) Command([]wire.ModelCommand) {}

// Cut implements engine.BackendPort.
func (s *backSession) Cut(error) {
	c := s.b.c
	c.report.Cuts++
	c.addMark("cut", int64(s.b.index), 0, 0)
	c.after(c.within(0, cutMost), func() {
		if s.up {
			s.breakLink(0, c.within(0, 100e6))
		}
		s.close()
	})
}

// cutMost is the longest delay until a session ends after the engine has given it up.
const cutMost Duration = 10e6

// Execute implements engine.BackendPort.
func (s *backSession) Execute(m []engine.Order) {
	c := s.b.c
	for i := range m {
		o := &order{s: s, sent: c.now, epoch: s.sch.epoch}
		m[i].Message(&o.x)
		c.check.checkOrder(o)
		c.report.Batches++

		// A peer of the previous protocol version gets the order as that version encodes it. The checker keeps the
		// full order.
		sent := o
		if s.b.old {
			sent = c.recodeOrder(o)
		}
		c.send(&s.link, fromEngine, LostExecute, c.o.LoseExecute, func() { s.b.acceptOrder(sent) })
	}
}
