package control

import (
	"io"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Sessions within one process: the engine's messages are copied into an inbox, whose goroutine calls the events.
// Nothing is encoded.

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
