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
	told   control.Told             // messages to the scheduler about leadership
	fronts map[uint32]*frontSession // by number, in the scheduler's life that the session belongs to
	// For the checker: batches sent and not done, GPUs as planned, frontends announced.
	flights map[uint64]*order
	gpus    []seenGPU
	peers   map[uint32]bool
}

// openSession opens a session with a scheduler.
func (b *back) openSession(sch *scheduler) {
	c := b.c
	s := &backSession{b: b, flights: map[uint64]*order{}, peers: map[uint32]bool{}, gpus: make([]seenGPU, c.o.GPUs),
		fronts: sch.book.sessions, told: control.Told{GPUs: c.o.GPUs}}
	s.link = b.newLink(sch, s)
	c.addMark("backend", int64(b.index), int64(sch.index), 0)

	// Pass a hello of its own: the engine may keep it, and the backend opens further sessions.
	h, err := sch.engine.OpenBackend(b.newHello(), s)
	if err != nil {
		c.check.fail("OpenBackend: %v", err)
		return
	}

	s.h = h

	b.noteSession(&s.link)
	s.offerLearners()
}

// openSessions returns the sessions whose links are up.
func (b *back) openSessions() (all []*backSession) {
	for _, l := range b.links {
		if l != nil && l.up {
			all = append(all, l.session.(*backSession))
		}
	}
	return all
}

func (s *backSession) noteFollow(m wire.Follow) {
	s.told.Follows = &m
	if m.Alive {
		s.told.Followed = m.Epoch
	}
}

func (s *backSession) noteBreak() {
	s.b.c.addMark("backend's link breaks", int64(s.b.index), int64(s.sch.index), 0)
}

func (s *backSession) closeInEngine() {
	c := s.b.c
	c.addMark("backend closes", int64(s.b.index), int64(len(s.flights)), 0)

	// Update the checker before the engine: closing queues the requests again, and outcomes may be sent at once.
	lost := c.check.beforeBackendClose(s)
	if !s.isOrphaned() {
		s.h.Close()
		c.check.checkLate(lost)
	}
}

func (s *backSession) noteDeath() { s.b.c.check.beforeBackendClose(s) }

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
