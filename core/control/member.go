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

// member is the connection with one of a cluster's schedulers. It connects, shakes hands, reads, and
// connects again when the session is lost, and tells its group what came.
type member struct {
	g    *group
	addr string

	w     atomic.Pointer[writer]  // nil while there is no session
	peer  atomic.Pointer[silence] // the latest session's
	ended chan struct{}           // closed when run has returned

	// The group's lock guards these.
	up      bool
	leads   bool
	epoch   uint64 // of its latest Lead
	version uint16 // of the session
	err     error  // of the latest attempt
}

// runSessions opens one session after the other until the group is closed.
func (m *member) runSessions() {
	defer close(m.ended)

	// An outage begins before the first session, too: attempts thin out from the start.
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

			// A session that ends as soon as it opens is one more attempt of the same outage.
			if time.Since(began) >= sessionMin {
				outage = time.Now()
			} else {
				m.waitBefore(outage)
			}
			continue
		}

		// The scheduler does not want this peer, and is not likely to change its mind soon.
		m.g.o.Logger.Error("scheduler refuses", "addr", m.addr, "err", err, "again_in", refusedAgain)
		m.g.noteRefused(m, err)
		select {
		case <-m.g.ctx.Done():
			return
		case <-time.After(refusedAgain):
		}
	}
}

// retryConnect connects until it works, the group is closed, or a fatal refusal comes. outage is since when
// there is no session.
func (m *member) retryConnect(outage time.Time) (net.Conn, *wire.Reader, error) {
	ctx := m.g.ctx
	for {
		conn, r, err := m.connectOnce(ctx)
		if err == nil {
			return conn, r, nil
		}

		// A wrong token or version does not mend itself: the caller learns of it now. All else is tried again.
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

// waitBefore lets some time pass before the next attempt, unless the group is closed.
func (m *member) waitBefore(outage time.Time) {
	wait := backoffAfter(time.Since(outage))
	select {
	case <-m.g.ctx.Done():
	// Spread at random, so that peers that lost one scheduler together do not come back in step.
	case <-time.After(wait/2 + rand.N(wait)):
	}
}

// backoffAfter is how long to wait for the next attempt during an outage that has lasted so long: a share of
// it, so that whoever comes back at once is found at once.
func backoffAfter(outage time.Duration) time.Duration {
	return min(max(outage/backoffShare, backoffMin), backoffMax)
}

// connectOnce makes one connection and shakes hands on it. A scheduler that refuses this protocol's version
// is asked once more in its own.
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

	// A deadline in the past ends a read or write that is under way when the group closes.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()

	// The session's connection has a name of its own: the function above may run beside this one.
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

	// A copy: the encoded hello is shared by all members, and the version is written into it.
	hello := append([]byte(nil), *m.g.hello.Load()...)
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
	return conn, r, nil
}

// readSession reads one connection until it ends and says why.
func (m *member) readSession(conn net.Conn, r *wire.Reader) error {
	w := newWriter(conn, WriteQueueMax)
	w.version = m.version
	m.w.Store(w)

	// Deferred calls run last first: no sender finds the writer any more when its end is awaited.
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

	// The group hears of the session before the first frame, so that the role has forgotten what the last one
	// told.
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

// readFrame answers pings, and gives the rest to the group.
func (m *member) readFrame(w *writer, f wire.Frame) error {
	switch f.Type {
	case wire.TypePing:
		// Answered without the group's lock: an event of another scheduler's session must not make this link
		// look dead.
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

// Silent is for how long the scheduler has said nothing, while a session is open.
func (m *member) silentFor() time.Duration {
	if s := m.peer.Load(); s != nil {
		return s.silentFor()
	}
	return 0
}
