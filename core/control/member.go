package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
)

// member is the connection with one scheduler of a cluster. It connects, shakes hands, reads, reconnects when the
// session is lost, and passes messages to its group.
type member struct {
	g    *group
	addr string

	w     atomic.Pointer[writer]  // nil without a session
	peer  atomic.Pointer[silence] // of the latest session
	ended chan struct{}           // closed when run has returned

	// The group's lock guards these.
	up      bool
	leads   bool
	epoch   uint64 // of its latest Lead
	version uint16 // of the session
	hello   uint64 // number of the hello that the session began with, or of a later one whose changes it was told
	err     error  // of the latest attempt
}

// runSessions opens one session after the other until the group is closed.
func (m *member) runSessions() {
	defer close(m.ended)

	// An outage counts from before the first session, so attempts become rarer from the start.
	outage := time.Now()
	for {
		conn, r, err := m.retryConnect(outage)
		if m.g.ctx.Err() != nil {
			return
		}
		if err == nil {
			began := time.Now()
			err = m.readSession(conn, r)
			if m.g.ctx.Err() != nil {
				err = ErrClosed
			}
			m.g.noteLost(m, err)

			// A session that ends as soon as it opens counts as another attempt in the same outage.
			if time.Since(began) >= sessionMin {
				outage = time.Now()
			} else {
				m.waitBefore(outage)
			}
			continue
		}

		// The scheduler refuses this peer and is unlikely to change its mind soon.
		m.g.o.Logger.Error("scheduler refuses", "addr", m.addr, "err", err, "again_in", refusedAgain)
		m.g.noteRefused(m, err)
		select {
		case <-m.g.ctx.Done():
			return
		case <-time.After(refusedAgain):
		}
	}
}

// retryConnect tries to connect until it succeeds, the group is closed, or a fatal refusal arrives. outage is the
// time since which there is no session.
func (m *member) retryConnect(outage time.Time) (net.Conn, *wire.Reader, error) {
	ctx := m.g.ctx
	for {
		conn, r, err := m.connectOnce(ctx)
		if err == nil {
			return conn, r, nil
		}

		// A wrong token or version does not change by itself, so the caller learns of it now. Other failures are
		// retried.
		var refused *RefusedError
		if errors.As(err, &refused) && refused.Fatal || errors.Is(err, wire.ErrVersion) {
			return nil, nil, err
		}
		m.g.notReached(m, err)

		m.g.o.Logger.Debug("scheduler not reached", "addr", m.addr, "err", err)
		if m.waitBefore(outage); ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
}

// waitBefore waits before the next attempt, unless the group is closed.
func (m *member) waitBefore(outage time.Time) {
	wait := backoffAfter(time.Since(outage))
	select {
	case <-m.g.ctx.Done():
	// The wait is random, so that peers that lost a scheduler together do not return in step.
	case <-time.After(wait/2 + rand.N(wait)):
	}
}

// backoffAfter returns the wait before the next attempt in an outage of this length. It is a share of the outage, so
// a scheduler that returns at once is found at once.
func backoffAfter(outage time.Duration) time.Duration {
	return min(max(outage/backoffShare, backoffMin), backoffMax)
}

// connectOnce makes one connection and shakes hands. If the scheduler refuses the protocol version, it tries once
// more with the scheduler's.
func (m *member) connectOnce(ctx context.Context) (net.Conn, *wire.Reader, error) {
	conn, r, err := m.connectAs(ctx, wire.Version)
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Fatal && refused.version >= wire.VersionMin && refused.version < wire.Version {
		return m.connectAs(ctx, refused.version)
	}
	return conn, r, err
}

func (m *member) connectAs(ctx context.Context, version uint16) (net.Conn, *wire.Reader, error) {
	conn, err := (&net.Dialer{Timeout: connectMax, Control: controlSocket}).DialContext(ctx, "tcp", m.addr)
	if err != nil {
		return nil, nil, err
	}

	// When the group closes, a deadline in the past ends a read or write in progress.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()

	// The session's connection has its own variable: the function above may run concurrently.
	session, r, err := m.shakeHands(conn, version)
	if err != nil {
		return nil, nil, err
	}
	return session, r, session.SetDeadline(time.Time{})
}

func (m *member) shakeHands(conn net.Conn, version uint16) (net.Conn, *wire.Reader, error) {
	conn = clientTLS(conn, m.g.o.TLS, m.addr)
	fail := func(err error) (net.Conn, *wire.Reader, error) {
		conn.Close()
		return nil, nil, fmt.Errorf("handshake: %w", err)
	}

	// One deadline for the whole handshake: TLS, hello and answer.
	if err := conn.SetDeadline(time.Now().Add(handshakeMax)); err != nil {
		return fail(err)
	}

	// A copy, because all members share the encoded hello and the version is written into it.
	greeting := m.g.hello.Load()
	hello := append([]byte(nil), greeting.frame...)
	hello = wire.SetHelloVersion(hello, version)
	if _, err := conn.Write(hello); err != nil {
		return fail(err)
	}

	r := wire.NewReader(conn)
	f, err := r.Next()
	if err != nil {
		return fail(err)
	}
	if f.Type == wire.TypeRefusal {
		no, err := wire.DecodeRefusal(f)
		if err != nil {
			return fail(err)
		}
		conn.Close()
		return nil, nil, &RefusedError{Fatal: no.Fatal, Text: no.Text, version: uint16(f.Version)}
	}
	if _, err := wire.DecodeWelcome(f); err != nil {
		return fail(err)
	}
	m.version = version
	m.g.mu.Lock()
	m.hello = greeting.number
	m.g.mu.Unlock()
	return conn, r, nil
}

// readSession reads one connection until it ends, and returns the reason.
func (m *member) readSession(conn net.Conn, r *wire.Reader) error {
	w := newWriter(conn, WriteQueueMax)
	w.version = m.version
	m.w.Store(w)

	// Deferred calls run in reverse: senders no longer find the writer when its end is awaited.
	defer func() { <-w.done }()
	defer m.w.Store(nil)
	stop := context.AfterFunc(m.g.ctx, func() { w.closeFor(ErrClosed) })
	defer stop()

	scheduler := &silence{patience: cmp.Or(m.g.o.quiet, quietTicks)}
	if m.version < leadVersion {
		scheduler.patience = quietTicksBefore // it pings frontends once a second
	}
	m.peer.Store(scheduler)
	go watchSilence(w, scheduler)

	// The group learns of the session before the first frame, so that the role forgets the previous session's
	// messages.
	m.g.noteOpened(m)
	for {
		f, err := r.Next()
		if err == nil {
			scheduler.heard.Add(1)
			err = m.readFrame(w, f)
		}
		if err != nil {
			w.closeFor(err)
			return w.closeReason(err)
		}
	}
}

// readFrame answers pings and passes other frames to the group.
func (m *member) readFrame(w *writer, f wire.Frame) error {
	switch f.Type {
	case wire.TypePing:
		// Answered without the group's lock: an event of another scheduler's session must not make this link look
		// dead.
		p, err := wire.DecodePing(f)
		if err != nil {
			return err
		}
		return sendAll(w, []wire.Pong{{Stamp: p.Stamp}}, appendPongs)

	case wire.TypeRefusal:
		no, err := wire.DecodeRefusal(f)
		if err != nil {
			return err
		}
		return &RefusedError{Fatal: no.Fatal, Text: no.Text}

	case wire.TypeLead:
		l, err := wire.DecodeLead(f)
		if err != nil {
			return err
		}
		m.g.noteLead(m, l)
		return nil
	}
	return m.g.takeFrame(m, f)
}

func appendPongs(b []byte, m []wire.Pong) []byte {
	for _, p := range m {
		b = wire.AppendPong(b, p)
	}
	return b
}

// silentFor returns how long the scheduler has been silent in the open session.
func (m *member) silentFor() time.Duration {
	if s := m.peer.Load(); s != nil {
		return s.silentFor()
	}
	return 0
}
