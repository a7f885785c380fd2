package control

import (
	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// Backend opens a backend's session within this process, as Frontend does.
func (s *Server) Backend(hello wire.BackendHello, ev BackendEvents) (BackendLink, error) {
	l := &localBackend{s: s, box: newInbox[backendMail](), ev: ev}
	hello.Version = wire.Version
	b, err := s.e.OpenBackend(hello, l)
	if err != nil {
		return nil, &RefusedError{Text: err.Error()}
	}

	l.b = b
	if !s.keepSession(l) {
		b.Close()
		return nil, ErrClosed
	}

	go func() {
		ev.Link(true, nil)
		l.box.deliverAll(l.deliver, func(err error) {
			b.Close()
			ev.Link(false, unavailableError(err))
		})
	}()
	return l, nil
}

type backendMail struct {
	placements []wire.Placement
	commands   []wire.ModelCommand
	steps      []wire.SpareStart
	peers      []wire.Peer
	executes   []wire.Execute // elements beyond the length keep their items' memory
}

type localBackend struct {
	s   *Server
	b   *engine.Backend
	box *inbox[backendMail]
	ev  BackendEvents
}

// Peers, Execute, Place, Command, Spare and Cut implement the engine's port.
func (l *localBackend) Peers(m []wire.Peer) {
	l.box.putMessages(len(m), func(b *backendMail) { b.peers = append(b.peers, m...) })
}

func (l *localBackend) Execute(m []engine.Order) {
	l.box.putMessages(len(m), func(b *backendMail) { b.executes = engine.AppendMessages(b.executes, m) })
}

func (l *localBackend) Place(m []wire.Placement) {
	l.box.putMessages(len(m), func(b *backendMail) { b.placements = append(b.placements, m...) })
}

func (l *localBackend) Command(m []wire.ModelCommand) {
	l.box.putMessages(len(m), func(b *backendMail) { b.commands = append(b.commands, m...) })
}

func (l *localBackend) Spare(m []wire.SpareStart) {
	l.box.putMessages(len(m), func(b *backendMail) { b.steps = append(b.steps, m...) })
}

func (l *localBackend) Cut(err error) { l.box.closeInbox(err) }

func (l *localBackend) deliver(b *backendMail) {
	// Peers come first: the backend must know the frontends that batches name.
	if len(b.peers) > 0 {
		l.ev.Peers(b.peers)
	}
	if len(b.executes) > 0 {
		l.ev.Execute(b.executes)
	}
	if len(b.placements) > 0 {
		l.ev.Place(b.placements)
	}
	if len(b.commands) > 0 {
		l.ev.Command(b.commands)
	}
	if len(b.steps) > 0 {
		l.ev.Spare(b.steps)
	}

	// Executes are not cleared: their items' memory is reused.
	clear(b.peers)
	b.placements, b.commands, b.peers, b.executes, b.steps = b.placements[:0], b.commands[:0], b.peers[:0], b.executes[:0], b.steps[:0]
}

func (l *localBackend) Offer(m []wire.Loadable) error {
	if !l.b.Offer(m) {
		return ErrUnavailable
	}
	return nil
}

func (l *localBackend) Report(m []wire.PlacementReport) error {
	if !l.b.Report(m) {
		return ErrUnavailable
	}
	return nil
}

func (l *localBackend) Answer(a wire.ModelAnswer) error {
	if !l.b.Answer([]wire.ModelAnswer{a}) {
		return ErrUnavailable
	}
	return nil
}

func (l *localBackend) Unserved(u wire.Unserved) error {
	if !l.b.Unserved(u) {
		return ErrUnavailable
	}
	return nil
}

func (l *localBackend) OfferSpare(m []wire.SpareOffer) error {
	if !l.b.OfferSpare(m) {
		return ErrUnavailable
	}
	return nil
}

func (l *localBackend) EndSpare(m []wire.SpareEnd) error {
	if !l.b.EndSpare(m) {
		return ErrUnavailable
	}
	return nil
}

// Renew and Renumber do nothing: a session within a process is the only one.
func (l *localBackend) Renew(wire.BackendHello) error    { return nil }
func (l *localBackend) Renumber(wire.BackendHello) error { return nil }

func (l *localBackend) Done(m []wire.Done) error {
	if !l.b.Done(m) {
		return ErrUnavailable
	}
	return nil
}

// Close ends the session and returns after its last event. An event must not call it.
func (l *localBackend) Close() error {
	l.s.forgetSession(l)

	l.box.closeInbox(ErrClosed)
	<-l.box.ended
	return nil
}
