package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
)

// leadVersion is the protocol version from which schedulers say whether they lead.
const leadVersion = 5

// role is what a frontend's and a backend's links do differently. The group's lock is held in each call.
type role interface {
	// begin forgets what a scheduler told in an earlier session.
	begin(m *member)
	// frame decodes what a scheduler sends, remembers what a later leader's peer must know, and passes
	// it on if the scheduler is obeyed.
	frame(m *member, f wire.Frame, obeyed bool) error
	// replay passes on what is remembered of a scheduler that is obeyed from now on.
	replay(m *member)
	// Link tells that a session opened or was lost.
	Link(up bool, err error)
}

// group is a peer's links with all schedulers of its cluster. Each is kept open; one scheduler at a time
// is obeyed: the one that leads in the highest epoch that any of them has told. What another one orders
// is not heard, so a leader that was paused or cut off while the cluster chose another one orders
// nothing when it is back. To the peer a change of leaders is a session that is lost and another one that
// opens at once, since what the new leader's session needs was remembered.
type group struct {
	o      DialOptions
	hello  atomic.Pointer[[]byte] // the encoded hello frame
	role   role
	heard  func(wire.Lead) // each Lead, under the lock; nil: nobody asks
	ctx    context.Context
	cancel context.CancelFunc

	members []*member
	active  atomic.Pointer[member] // that is obeyed; nil: none. Written under mu

	mu      sync.Mutex
	highest uint64        // epoch of any Lead heard
	told    wire.Follow   // to all members, the latest
	fatal   error         // a refusal before any session opened
	first   chan struct{} // closed at the first session, or at a fatal refusal
	once    sync.Once     // closes first
}

func newGroup(o DialOptions, hello []byte, r role) (*group, error) {
	if err := o.checkOptions(); err != nil {
		return nil, err
	}

	g := &group{o: o, role: r, first: make(chan struct{})}
	g.hello.Store(&hello)

	// The context is the group's own: links outlive the call that dialled them.
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for addr := range strings.SplitSeq(o.Addr, ",") {
		g.members = append(g.members, &member{g: g, addr: strings.TrimSpace(addr), ended: make(chan struct{})})
	}
	return g, nil
}

// startAll connects to every scheduler and waits for the first session. Schedulers that are not there are
// tried on; that none is there is an error unless the options say otherwise.
func (g *group) startAll(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialMax)
		defer cancel()
	}

	// Each scheduler has its goroutine for good, so that standbys are connected when one of them takes over.
	for _, m := range g.members {
		go m.runSessions()
	}

	select {
	case <-g.first:
		g.mu.Lock()
		err := g.fatal
		g.mu.Unlock()
		if err != nil {
			g.closeAll()
		}
		return err
	case <-ctx.Done():
	}

	// No session in time. A patient caller goes on waiting, unless it was cancelled and not merely out of time.
	err := g.whyNone()
	if g.o.Patient && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		g.o.Logger.Warn("waiting for the scheduler", "addr", g.o.Addr, "err", err)
		return nil
	}
	g.closeAll()
	return err
}

// whyNone tells why no scheduler was reached.
func (g *group) whyNone() error {
	g.mu.Lock()
	defer g.mu.Unlock()

	var all []error
	for _, m := range g.members {
		if m.err != nil {
			all = append(all, fmt.Errorf("%s: %w", m.addr, m.err))
		}
	}
	if len(all) == 0 {
		all = append(all, fmt.Errorf("%s: no answer", g.o.Addr))
	}
	return unavailableError(errors.Join(all...))
}

// notReached notes why an attempt to connect failed.
func (g *group) notReached(m *member, err error) {
	// A group that closes breaks its own attempts: that is no reason to remember.
	if g.ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	m.err = err
	g.mu.Unlock()
}

// noteRefused notes a no that trying again is not likely to change.
func (g *group) noteRefused(m *member, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// Only a refusal before any session ends the dial; afterwards the link goes on trying.
	m.err = err
	g.once.Do(func() { g.fatal = err; close(g.first) })
	if g.active.Load() == nil {
		g.role.Link(false, unavailableError(err))
	}
}

// noteOpened notes a session. A scheduler of an earlier version leads without saying so.
func (g *group) noteOpened(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// The epoch starts anew with the session: what the scheduler said before it may be out of date.
	m.up, m.leads, m.epoch, m.err = true, m.version < leadVersion, 0, nil
	g.once.Do(func() { close(g.first) })
	g.role.begin(m)
	g.chooseLeader(nil)
}

// noteLost notes a session's end.
func (g *group) noteLost(m *member, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	m.up, m.leads, m.err = false, false, why
	g.chooseLeader(why)
}

// noteLead notes whether a scheduler leads.
func (g *group) noteLead(m *member, l wire.Lead) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// No epoch and no lead is how a new session stands, so this is its first word.
	first := m.epoch == 0 && !m.leads
	m.leads, m.epoch = l.Leads, l.Epoch
	if g.heard != nil {
		g.heard(l)
	}
	g.chooseLeader(nil)
	if first {
		g.tellFollowed(m) // it may have missed what the others were told
	}
}

// takeFrame gives a frame to the role.
func (g *group) takeFrame(m *member, f wire.Frame) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.role.frame(m, f, g.active.Load() == m)
}

// chooseLeader obeys the leader of the highest epoch, if its session is open. The lock is held.
func (g *group) chooseLeader(why error) {
	was := g.active.Load()
	all := make([]Standing, len(g.members))
	for i, m := range g.members {
		all[i] = Standing{Up: m.up, Leads: m.leads, Epoch: m.epoch}
	}

	var best *member
	obeyed, highest := Obeyed(all, slices.Index(g.members, was), g.highest)
	g.highest = highest
	if obeyed >= 0 {
		best = g.members[obeyed]
	}

	if best != was {
		g.active.Store(nil) // what is sent from here on must not reach the one before
		if was != nil {
			g.role.Link(false, unavailableError(why))
		}
		if best != nil {
			g.active.Store(best)
			g.role.Link(true, nil)
			g.role.replay(best)
		}
	}

	if now := (wire.Follow{Epoch: g.highest, Alive: best != nil}); now != g.told {
		// Schedulers decide from these answers whether the leader is lost, so each change is told to all of them.
		g.told = now
		for _, m := range g.members {
			g.tellFollowed(m)
		}
	}
}

// tellFollowed tells a scheduler whom this peer obeys. The lock is held.
func (g *group) tellFollowed(m *member) {
	if w := m.w.Load(); w != nil && m.up && m.version >= leadVersion {
		_ = sendAll(w, []wire.Follow{g.told}, appendFollows) // a lost session tells anew
	}
}

func appendFollows(b []byte, all []wire.Follow) []byte {
	for _, f := range all {
		b = wire.AppendFollow(b, f)
	}
	return b
}

// leaderWriter returns that of the scheduler that is obeyed; nil: there is none.
func (g *group) leaderWriter() *writer {
	if m := g.active.Load(); m != nil {
		return m.w.Load()
	}
	return nil
}

// Silent is for how long the scheduler that is obeyed has said nothing.
func (g *group) Silent() time.Duration {
	if m := g.active.Load(); m != nil {
		return m.silentFor()
	}
	return 0
}

func (g *group) closeAll() {
	// Events come from the members' goroutines: waiting for them makes the last event come before the return.
	g.cancel()
	for _, m := range g.members {
		<-m.ended
	}
}

// Close ends the link and returns after its last event. An event must not call it.
func (g *group) Close() error {
	g.closeAll()
	return nil
}
