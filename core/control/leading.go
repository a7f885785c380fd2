package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// leadership is the server's knowledge of who leads, and its peers' reports about it.
type leadership struct {
	leads bool
	epoch uint64 // the epoch led in, or heard of
	// changed holds at most one token, added when a peer reports whom it follows, connects or leaves.
	changed chan struct{}
}

// View sums up the peers' reports about an epoch's leader.
type View struct {
	Epoch uint64 // the highest epoch that any peer has heard of
	GPUs  int    // GPUs of the connected backends
	Alive int    // GPUs whose backend follows the leader of Epoch
	Lost  int    // GPUs whose backend had a link with that leader and has lost it
}

// View returns the sum of the peers' reports. Changed receives a token when it may have changed.
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

// Changed receives a token when View may have changed.
func (s *Server) Changed() <-chan struct{} { return s.leading.changed }

func (s *Server) noteChange() {
	// One token is enough: its receiver reads the whole view.
	select {
	case s.leading.changed <- struct{}{}:
	default:
	}
}

// Leads reports whether this server leads, and in which epoch.
func (s *Server) Leads() (epoch uint64, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading.epoch, s.leading.leads
}

// Lead makes the server lead in an epoch, and tells all its peers.
func (s *Server) Lead(epoch uint64) {
	s.mu.Lock()
	s.leading.leads, s.leading.epoch = true, epoch
	s.tellLead()
	s.mu.Unlock()
	_ = s.e.SetLeading(true) // a closed engine has no plans
	s.log.Info("this scheduler leads", "epoch", epoch)
}

// StandBy makes the server stop leading. It ends the sessions, frontends first: their requests go to the next leader,
// and peers that reconnect find this server standing by.
func (s *Server) StandBy(epoch uint64) {
	s.mu.Lock()
	led := s.leading.leads
	s.leading.leads, s.leading.epoch = false, max(epoch, s.leading.epoch)
	s.tellLead()
	s.mu.Unlock()
	_ = s.e.SetLeading(false)
	if led {
		// Frontends go first, so that their requests do not end for lack of a backend.
		s.log.Warn("another scheduler leads", "epoch", epoch)
		s.closeSessions(func(k sessionKind) bool { return k != backendSession })
		s.closeSessions(func(sessionKind) bool { return true })
	}
}

// tellLead announces the state to every peer that understands it: backends first, frontends last. A frontend submits
// its requests at once, and the resulting orders must reach backends that already obey this scheduler, as they drop
// the orders of others. The lock is held.
func (s *Server) tellLead() {
	m := []wire.Lead{s.leadMessage()}
	for _, kind := range [...]sessionKind{backendSession, standbySession, frontendSession} {
		for c := range s.sessions {
			if w := c.w.Load(); w != nil && sessionKind(c.kind.Load()) == kind && c.version >= leadVersion {
				_ = sendAll(w, m, appendLeads) // a lost session needs no message
			}
		}
	}
}

// leadMessage is the server's report of itself. The lock is held.
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

// noteFollowed records whom a peer follows.
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

// runStandby serves a standby scheduler: it sends the measurements of this one every second.
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
		case wire.TypeFollow: // a standby's report does not count
			_, err = wire.DecodeFollow(f)
		default:
			err = fmt.Errorf("%w: %v frame from a standby", wire.ErrMalformed, f.Type)
		}
		return err
	})
}

// learnedEvery is the interval at which a leader sends its measurements to standbys. planEvery is how often it checks
// whether its plan has changed, because a successor should know of a plan as soon as it has effects.
const (
	learnedEvery = time.Second
	planEvery    = 50 * time.Millisecond
)

func (c *session) teachLead(w *writer, stop <-chan struct{}) {
	t := time.NewTicker(planEvery)
	defer t.Stop()
	var told *engine.PlanRecord
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-t.C:
		}

		if record := c.s.e.PlanRecord(); record != told && c.version >= wire.PlanVersion {
			told = record
			c.tellPlan(w, record)
		}
		if n%int(learnedEvery/planEvery) != 0 {
			continue
		}

		// The GPUs are counted each time: backends come and go.
		c.s.mu.Lock()
		lead := c.s.leadMessage()
		c.s.mu.Unlock()
		_ = sendAll(w, []wire.Lead{lead}, appendLeads)
		_ = sendErr(w, c.s.e.Learned(), wire.AppendLearned)
	}
}

// tellPlan sends the plan to a standby. If the plan is too large for a message, the standby gets only its number and
// applies nothing.
func (c *session) tellPlan(w *writer, r *engine.PlanRecord) {
	text, err := json.Marshal(r)
	if err != nil || len(text) > wire.PlanBytesMax {
		text = nil
	}
	_ = sendErr(w, []wire.PlanRecord{{Number: r.Number, Document: string(text)}}, func(b []byte, m []wire.PlanRecord) ([]byte, error) {
		return wire.AppendPlanRecord(b, &m[0])
	})
}

// Lessons are a standby's handlers of a leader's messages. Each is called from one goroutine.
type Lessons struct {
	Learned func([]wire.Learned)     // the leader's measurements, every second
	Lead    func(wire.Lead)          // a scheduler's report of itself
	Plan    func(*engine.PlanRecord) // the leader's plan, when it changes
}

// DialStandby keeps a session with the scheduler that leads, until ctx ends.
func DialStandby(ctx context.Context, o DialOptions, name string, l Lessons) error {
	hello, err := wire.AppendStandbyHello(nil, &wire.StandbyHello{Version: wire.Version, Token: o.Token, Name: name})
	if err != nil {
		return err
	}
	g, err := newGroup(o, hello, &standbyLink{l})
	if err != nil {
		return err
	}
	g.heard = l.Lead
	for _, m := range g.members {
		go m.runSessions()
	}

	// A standby sends nothing, so this goroutine only waits.
	<-ctx.Done()
	g.closeAll()
	return nil
}

// standbyLink is a standby's end of its group.
type standbyLink struct{ Lessons }

func (l *standbyLink) begin(*member)    {}
func (l *standbyLink) replay(*member)   {}
func (l *standbyLink) Link(bool, error) {}

func (l *standbyLink) frame(_ *member, f wire.Frame, _ bool) error {
	switch f.Type {
	case wire.TypeLearned:
		all, err := wire.DecodeLearned(f)
		if err == nil {
			l.Learned(all)
		}
		return err
	case wire.TypePlanRecord:
		return l.takePlan(f)
	}
	return fmt.Errorf("%w: %v frame to a standby", wire.ErrMalformed, f.Type)
}

func (l *standbyLink) takePlan(f wire.Frame) error {
	m, err := wire.DecodePlanRecord(f)
	if err != nil {
		return err
	}

	// A plan without a document is known by its number, so that no older one is applied.
	r := &engine.PlanRecord{Number: m.Number, State: engine.PlanStopped}
	if m.Document != "" {
		if err := json.Unmarshal([]byte(m.Document), r); err != nil {
			return fmt.Errorf("%w: plan %d: %w", wire.ErrMalformed, m.Number, err)
		}
	}
	l.Plan(r)
	return nil
}
