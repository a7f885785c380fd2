package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/wire"
)

// leadership is what a server tells its peers about who leads, and what they tell it.
type leadership struct {
	leads bool
	epoch uint64 // led in, or heard of
	// changed has room for one token: a peer has told whom it follows, came or went.
	changed chan struct{}
}

// View is what the peers of a server tell of an epoch's leader.
type View struct {
	Epoch uint64 // the highest that any peer has heard of
	GPUs  int    // of the backends that are connected
	Alive int    // GPUs whose backend follows the leader of Epoch
	Lost  int    // GPUs whose backend had a link with that leader, as it told here, and has lost it
}

// View tells what the peers say. Changed has a token when it may have changed.
func (s *Server) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()

	epoch := s.leading.epoch
	var backends []Told
	for c := range s.sessions {
		if c.follows != nil {
			epoch = max(epoch, c.follows.Epoch)
		}
		if sessionKind(c.kind.Load()) == backendSession {
			backends = append(backends, Told{GPUs: c.gpus, Follows: c.follows, Followed: c.followed})
		}
	}
	return NewView(epoch, backends)
}

// Changed has a token when View may have changed.
func (s *Server) Changed() <-chan struct{} { return s.leading.changed }

func (s *Server) noteChange() {
	// One token is enough: whoever takes it reads the whole view.
	select {
	case s.leading.changed <- struct{}{}:
	default:
	}
}

// Leads tells whether this server leads, and in which epoch.
func (s *Server) Leads() (epoch uint64, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading.epoch, s.leading.leads
}

// Lead has the server lead in an epoch, and tells all its peers.
func (s *Server) Lead(epoch uint64) {
	s.mu.Lock()
	s.leading.leads, s.leading.epoch = true, epoch
	s.tellLead()
	s.mu.Unlock()
	s.log.Info("this scheduler leads", "epoch", epoch)
}

// StandBy has the server lead no more. Its sessions end, frontends' first: what it had taken in is the
// next leader's, and peers that come back find it waiting.
func (s *Server) StandBy(epoch uint64) {
	s.mu.Lock()
	led := s.leading.leads
	s.leading.leads, s.leading.epoch = false, max(epoch, s.leading.epoch)
	s.tellLead()
	s.mu.Unlock()
	if led {
		// Frontends go first, so that their requests are not ended for want of a backend.
		s.log.Warn("another scheduler leads", "epoch", epoch)
		s.closeSessions(func(k sessionKind) bool { return k != backendSession })
		s.closeSessions(func(sessionKind) bool { return true })
	}
}

// tellLead tells every peer that can read it. The lock is held.
func (s *Server) tellLead() {
	m := []wire.Lead{s.leadMessage()}
	for c := range s.sessions {
		if w := c.w.Load(); w != nil && c.version >= leadVersion {
			_ = sendAll(w, m, appendLeads) // a session that is lost needs to know nothing
		}
	}
}

// leadMessage is what the server tells of itself. The lock is held.
func (s *Server) leadMessage() wire.Lead {
	gpus := 0
	for c := range s.sessions {
		gpus += c.gpus
	}
	return wire.Lead{Epoch: s.leading.epoch, Leads: s.leading.leads, GPUs: uint32(gpus)}
}

func appendLeads(b []byte, all []wire.Lead) []byte {
	for _, l := range all {
		b = wire.AppendLead(b, l)
	}
	return b
}

// noteFollowed notes whom a peer follows.
func (c *session) noteFollowed(f wire.Frame) error {
	m, err := wire.DecodeFollow(f)
	if err != nil {
		return err
	}

	c.s.mu.Lock()
	c.follows = &m
	if m.Alive {
		c.followed = m.Epoch
	}
	c.s.mu.Unlock()
	c.s.noteChange()
	return nil
}

// errStandby refuses a peer that would take any scheduler for the leader.
var errStandby = errors.New("this scheduler stands by and another one leads; name all schedulers to peers of protocol 5 and later")

// runStandby serves a scheduler that stands by: every second it is told what this one has learned.
func (c *session) runStandby(f wire.Frame, next func() (wire.Frame, error)) error {
	h, err := wire.DecodeStandbyHello(f)
	if err != nil {
		return c.refuseHello(true, err)
	}

	c.kind.Store(uint32(standbySession))
	c.name = h.Name

	w := c.corkedWriter()
	stop := make(chan struct{})
	defer close(stop)
	go c.teachLead(w, stop)

	return c.runFrames(next, w, 0, func(f wire.Frame) (err error) {
		switch f.Type {
		case wire.TypePong:
			_, err = wire.DecodePong(f)
		case wire.TypeFollow: // a standby has no say
			_, err = wire.DecodeFollow(f)
		default:
			err = fmt.Errorf("%w: %v frame from a standby", wire.ErrMalformed, f.Type)
		}
		return err
	})
}

// learnedEvery is how often a leader tells its standbys what it has learned.
const learnedEvery = time.Second

func (c *session) teachLead(w *writer, stop <-chan struct{}) {
	t := time.NewTicker(learnedEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}

		// The GPUs are counted anew each second: backends come and go.
		c.s.mu.Lock()
		lead := c.s.leadMessage()
		c.s.mu.Unlock()
		_ = sendAll(w, []wire.Lead{lead}, appendLeads)
		_ = sendErr(w, c.s.e.Learned(), wire.AppendLearned)
	}
}

// DialStandby keeps a session with the scheduler that leads, until ctx ends. told is called from one
// goroutine with what the leader has learned, and with what it says of itself.
func DialStandby(ctx context.Context, o DialOptions, name string, told func([]wire.Learned), lead func(wire.Lead)) error {
	hello, err := wire.AppendStandbyHello(nil, &wire.StandbyHello{Version: wire.Version, Token: o.Token, Name: name})
	if err != nil {
		return err
	}
	g, err := newGroup(o, hello, &standbyLink{told: told})
	if err != nil {
		return err
	}
	g.heard = lead
	for _, m := range g.members {
		go m.runSessions()
	}

	// A standby has nothing to send, so this goroutine only waits.
	<-ctx.Done()
	g.closeAll()
	return nil
}

// standbyLink is a standby's end of its group.
type standbyLink struct{ told func([]wire.Learned) }

func (l *standbyLink) begin(*member)    {}
func (l *standbyLink) replay(*member)   {}
func (l *standbyLink) Link(bool, error) {}

func (l *standbyLink) frame(_ *member, f wire.Frame, _ bool) error {
	if f.Type != wire.TypeLearned {
		return fmt.Errorf("%w: %v frame to a standby", wire.ErrMalformed, f.Type)
	}
	all, err := wire.DecodeLearned(f)
	if err == nil {
		l.told(all)
	}
	return err
}
