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

// leadVersion is the protocol version since which schedulers report whether they lead.
const leadVersion = 5

// role is the part of a link in which frontends, backends and standbys differ. Each call holds the group's lock.
type role interface {
	// begin forgets the messages of a scheduler's earlier session.
	begin(m *member)
	// frame decodes a scheduler's message. It remembers what a later leader's peer must know, and passes the message
	// on if the scheduler is obeyed.
	frame(m *member, f wire.Frame, obeyed bool) error
	// replay passes on the remembered messages of a scheduler that is obeyed from now on.
	replay(m *member)
	// Link reports that a session opened or was lost.
	Link(up bool, err error)
}

// group is a peer's links with all schedulers of its cluster. All links stay open, and the peer obeys one scheduler
// at a time: the leader of the highest epoch that any of them has reported. Messages of the others are not passed on,
// so a leader that was paused or cut off while the cluster elected another gives no orders when it returns. To the
// peer, a change of leader looks like a lost session followed by a new one at once, because the state that the new
// leader's session needs was remembered.
type group struct {
	o      DialOptions
	hello  atomic.Pointer[greeting]
	role   role
	heard  func(wire.Lead) // called with each Lead, under the lock; nil: unused
	ctx    context.Context
	cancel context.CancelFunc

	members []*member
	active  atomic.Pointer[member] // the obeyed scheduler; nil: none. Written under mu

	mu      sync.Mutex
	highest uint64        // highest epoch of any Lead
	oldest  uint64        // a session that began with an earlier hello is not obeyed
	told    wire.Follow   // the latest message to all members
	fatal   error         // a refusal before any session opened
	first   chan struct{} // closed at the first session, or at a fatal refusal
	once    sync.Once     // closes first
}

// greeting is the hello that sessions open with.
type greeting struct {
	frame  []byte // encoded
	number uint64 // of its renewals
}

func newGroup(o DialOptions, hello []byte, r role) (*group, error) {
	if err := o.checkOptions(); err != nil {
		return nil, err
	}

	g := &group{o: o, role: r, first: make(chan struct{})}
	g.hello.Store(&greeting{frame: hello})

	// The context belongs to the group: links outlive the call that dialled them.
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for addr := range strings.SplitSeq(o.Addr, ",") {
		g.members = append(g.members, &member{g: g, addr: strings.TrimSpace(addr), ended: make(chan struct{})})
	}
	return g, nil
}

// startAll connects to every scheduler and waits for the first session. Connection attempts continue in the
// background. Without a session in time it fails, unless the options say otherwise.
func (g *group) startAll(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialMax)
		defer cancel()
	}

	// Each scheduler has a goroutine until Close, so that standbys are connected when one takes over.
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

	// No session in time. A patient caller continues, unless ctx was cancelled rather than expired.
	err := g.whyNone()
	if g.o.Patient && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		g.o.Logger.Warn("waiting for the scheduler", "addr", g.o.Addr, "err", err)
		return nil
	}
	g.closeAll()
	return err
}

// whyNone returns the reason why no scheduler was reached.
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

// notReached records a failed attempt to connect.
func (g *group) notReached(m *member, err error) {
	// A closing group breaks its own attempts; these failures mean nothing.
	if g.ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	m.err = err
	g.mu.Unlock()
}

// noteRefused records a refusal that a retry is unlikely to change.
func (g *group) noteRefused(m *member, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// Only a refusal before any session ends the dial; after one, the link keeps trying.
	m.err = err
	g.once.Do(func() { g.fatal = err; close(g.first) })
	if g.active.Load() == nil {
		g.role.Link(false, unavailableError(err))
	}
}

// noteOpened records a new session. A scheduler of an earlier version leads without saying so.
func (g *group) noteOpened(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// The epoch starts again with the session: earlier reports may be out of date.
	m.up, m.leads, m.epoch, m.err = true, m.version < leadVersion, 0, nil
	g.once.Do(func() { close(g.first) })
	g.role.begin(m)
	g.reopenOutdated(m)
	g.chooseLeader(nil)
}

// noteLost records the end of a session.
func (g *group) noteLost(m *member, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	m.up, m.leads, m.err = false, false, why
	g.chooseLeader(why)
}

// noteLead records whether a scheduler leads.
func (g *group) noteLead(m *member, l wire.Lead) {
	g.mu.Lock()
	defer g.mu.Unlock()

	// A new session starts without epoch and lead, so this is its first report.
	first := m.epoch == 0 && !m.leads
	m.leads, m.epoch = l.Leads, l.Epoch
	if g.heard != nil {
		g.heard(l)
	}
	g.chooseLeader(nil)
	if first {
		g.tellFollowed(m) // it may have missed messages to the others
	}
}

// takeFrame passes a frame to the role.
func (g *group) takeFrame(m *member, f wire.Frame) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.role.frame(m, f, g.active.Load() == m)
}

// chooseLeader obeys the leader of the highest epoch if its session is open. The lock is held.
func (g *group) chooseLeader(why error) {
	was := g.active.Load()
	all := make([]Standing, len(g.members))
	for i, m := range g.members {
		all[i] = Standing{Up: m.up && m.hello >= g.oldest, Leads: m.leads, Epoch: m.epoch}
	}

	var best *member
	obeyed, highest := Obeyed(all, slices.Index(g.members, was), g.highest)
	g.highest = highest
	if obeyed >= 0 {
		best = g.members[obeyed]
	}

	if best != was {
		g.active.Store(nil) // from here on nothing may be sent to the previous leader
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
		// Schedulers derive from these reports whether the leader is lost, so all of them get each change.
		g.told = now
		for _, m := range g.members {
			g.tellFollowed(m)
		}
	}
}

// tellFollowed tells a scheduler whom this peer obeys. The lock is held.
func (g *group) tellFollowed(m *member) {
	if w := m.w.Load(); w != nil && m.up && m.version >= leadVersion {
		_ = sendAll(w, []wire.Follow{g.told}, appendFollows) // if the session is lost, the next one repeats it
	}
}

func appendFollows(b []byte, all []wire.Follow) []byte {
	for _, f := range all {
		b = wire.AppendFollow(b, f)
	}
	return b
}

// renewHello sets the hello of later sessions. If others are outdated, a scheduler whose session began with an earlier
// one is not obeyed before it has a new session. The obeyed scheduler has been told of each change.
func (g *group) renewHello(frame []byte, outdated bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()

	// A scheduler of an earlier version is told of no change after its hello.
	active := g.active.Load()
	if outdated && active != nil && active.version < leadVersion {
		return ErrUnavailable
	}

	number := g.hello.Load().number + 1
	g.hello.Store(&greeting{frame, number})
	if active != nil {
		active.hello = number
	}
	if !outdated {
		return nil
	}

	// They are opened again at once, so that a standby that takes over has one.
	g.oldest = number
	for _, m := range g.members {
		g.reopenOutdated(m)
	}
	return nil
}

// reopenOutdated ends a session that may not be obeyed because of its hello. The lock is held.
func (g *group) reopenOutdated(m *member) {
	if w := m.w.Load(); w != nil && m.up && m.hello < g.oldest {
		w.closeFor(errOutdated)
	}
}

var errOutdated = errors.New("the session began with an earlier hello")

// leaderWriter returns the writer of the obeyed scheduler; nil if there is none.
func (g *group) leaderWriter() *writer {
	if m := g.active.Load(); m != nil {
		return m.w.Load()
	}
	return nil
}

// Silent returns how long the obeyed scheduler has been silent.
func (g *group) Silent() time.Duration {
	if m := g.active.Load(); m != nil {
		return m.silentFor()
	}
	return 0
}

func (g *group) closeAll() {
	// Events come from the members' goroutines: waiting for them ensures that no event follows the return.
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
