package control

import (
	"io"
	"sync"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Sessions within one process: the engine's messages are copied into an inbox, whose goroutine calls the events.
// Nothing is encoded.

const inboxMax = 1 << 20 // messages waiting for an in-process peer before it is cut off

// inbox passes batches of messages from any goroutine to one. Both sides' memory is reused.
type inbox[T any] struct {
	mu     sync.Mutex
	more   *sync.Cond
	in     T // under mu
	out    T // owned by the goroutine
	n      int
	closed bool
	err    error
	ended  chan struct{}
}

func newInbox[T any]() *inbox[T] {
	b := &inbox[T]{ended: make(chan struct{})}
	b.more = sync.NewCond(&b.mu)
	return b
}

// putMessages calls add to append n messages. It returns false if too many wait for the peer.
func (b *inbox[T]) putMessages(n int, add func(*T)) {
	b.mu.Lock()
	if !b.closed {
		// A peer that is too slow is cut off, as on TCP; the engine never waits for it.
		if b.n += n; b.n > inboxMax {
			b.closed, b.err = true, ErrSlowPeer
		} else {
			add(&b.in)
		}
		b.more.Signal()
	}
	b.mu.Unlock()
}

func (b *inbox[T]) closeInbox(err error) {
	b.mu.Lock()
	if !b.closed {
		b.closed, b.err = true, err
	}
	b.more.Signal()
	b.mu.Unlock()
}

// deliverAll calls deliver with the messages until close, then last with the reason.
func (b *inbox[T]) deliverAll(deliver func(*T), last func(error)) {
	defer close(b.ended)
	for {
		b.mu.Lock()
		for b.n == 0 && !b.closed {
			b.more.Wait()
		}
		if b.closed {
			err := b.err
			b.mu.Unlock()
			last(err)
			return
		}

		// The buffers are swapped under the lock and events run outside it, so senders never wait for an event.
		b.in, b.out = b.out, b.in
		b.n = 0
		b.mu.Unlock()
		deliver(&b.out)
	}
}

// Frontend opens a frontend's session within this process. It ends with Close or with the server.
func (s *Server) Frontend(hello wire.FrontendHello, ev FrontendEvents) (FrontendLink, error) {
	l := &localFrontend{s: s, box: newInbox[frontendMail](), ev: ev}
	hello.Version = wire.Version

	f, err := s.e.OpenFrontend(hello, l)
	if err != nil {
		return nil, &RefusedError{Text: err.Error()}
	}

	l.f = f

	// The server may have closed since the engine opened the session.
	if !s.keepSession(l) {
		f.Close()
		return nil, ErrClosed
	}

	go func() {
		ev.Link(true, nil)
		l.box.deliverAll(l.deliver, func(err error) {
			f.Close()
			ev.Link(false, unavailableError(err))
		})
	}()
	return l, nil
}

// keepSession registers an in-process session for Close.
func (s *Server) keepSession(l io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.locals[l] = struct{}{}
	return true
}

func (s *Server) forgetSession(l io.Closer) {
	s.mu.Lock()
	delete(s.locals, l)
	s.mu.Unlock()
}

type frontendMail struct {
	models   []model.Info
	outcomes []wire.Outcome
	answers  []wire.ModelAnswer
}

type localFrontend struct {
	s   *Server
	f   *engine.Frontend
	box *inbox[frontendMail]
	ev  FrontendEvents
}

// Models, Outcomes and Answers implement the engine's port.
func (l *localFrontend) Models(m []model.Info) {
	l.box.putMessages(len(m), func(b *frontendMail) { b.models = append(b.models, m...) })
}

func (l *localFrontend) Outcomes(m []wire.Outcome) {
	l.box.putMessages(len(m), func(b *frontendMail) { b.outcomes = append(b.outcomes, m...) })
}

func (l *localFrontend) Answers(m []wire.ModelAnswer) {
	l.box.putMessages(len(m), func(b *frontendMail) { b.answers = append(b.answers, m...) })
}

func (l *localFrontend) deliver(b *frontendMail) {
	if len(b.models) > 0 {
		l.ev.Models(b.models)
	}
	if len(b.outcomes) > 0 {
		l.ev.Outcomes(b.outcomes)
	}
	if len(b.answers) > 0 { // after the models: the caller of a command sees its effects
		l.ev.Answers(b.answers)
	}

	// Model infos hold strings and slices: clear them, so that the buffer keeps no model alive.
	clear(b.models)
	b.models, b.outcomes, b.answers = b.models[:0], b.outcomes[:0], b.answers[:0]
}

func (l *localFrontend) Submit(m []wire.Submit) error {
	if !l.f.Submit(m) {
		return ErrUnavailable
	}
	return nil
}

func (l *localFrontend) Command(c wire.ModelCommand) error {
	if !l.f.Command([]wire.ModelCommand{c}) {
		return ErrUnavailable
	}
	return nil
}

func (l *localFrontend) Cancel(c wire.Cancel) error {
	m := [1]wire.Cancel{c}
	if !l.f.Cancel(m[:]) {
		return ErrUnavailable
	}
	return nil
}

// Close ends the session and returns after its last event. An event must not call it.
func (l *localFrontend) Close() error {
	l.s.forgetSession(l)

	l.box.closeInbox(ErrClosed)
	<-l.box.ended
	return nil
}

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

// Renew does nothing: a session within a process is the only one.
func (l *localBackend) Renew(wire.BackendHello) error { return nil }

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
