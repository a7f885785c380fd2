package control

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// sessionKind is the kind of a session's peer. It is strangerSession until the hello.
type sessionKind uint32

const (
	strangerSession sessionKind = iota
	frontendSession
	backendSession
	standbySession
)

// session is one TCP peer.
type session struct {
	s     *Server
	raw   net.Conn      // used by Close, from any goroutine
	conn  net.Conn      // used by serve: raw, or TLS over it
	ended chan struct{} // closed when serve has returned

	version  uint16                         // protocol version of the peer; set before it becomes a session
	gpus     int                            // of a backend; guarded by the server's lock, as is follows
	follows  *wire.Follow                   // nil: not reported
	followed uint64                         // the latest epoch with whose leader the peer had a link
	name     string                         // the hello's; used by serve
	kind     atomic.Uint32                  // a sessionKind
	w        atomic.Pointer[writer]         // nil before the answer to the handshake
	alive    silence                        // used by the pinger, except heard
	backend  atomic.Pointer[engine.Backend] // the engine's session; nil: not open yet, or not a backend
	tcp      tcpState                       // the kernel's state at the pinger's latest look
	arrival                                 // of the handshake

	submit []wire.Submit // the reader's
	cancel []wire.Cancel
	done   []wire.Done
	ends   []wire.SpareEnd
}

// serveConnection runs the session to its end. A peer's error ends only its own session.
func (c *session) serveConnection() {
	defer c.raw.Close()
	log := c.s.log.With("peer", c.conn.RemoteAddr().String())
	if c.s.o.TLS != nil {
		c.conn = tls.Server(c.conn, c.s.o.TLS)
	}

	// Strangers have this long to complete their hello; nothing of theirs reaches the engine before it.
	c.conn.SetDeadline(time.Now().Add(handshakeMax))
	r := wire.NewReader(c.conn)
	hello, err := c.readHello(r)
	if err == nil {
		err = c.openEngine(r, hello, log)
	}

	// A peer that leaves is routine. One that fails before its hello, or is refused, matters to the operator.
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		log.Debug("session ended", "err", err)
	case sessionKind(c.kind.Load()) == strangerSession:
		log.Warn("handshake failed", "err", err)
	case errors.Is(err, errRefused):
		log.Warn("peer refused", "name", c.name, "err", err)
	default:
		log.Warn("session ended", "name", c.name, "err", err)
	}
}

// checkAlive pings the peer and closes the connection if the peer has been silent too long. The pinger calls it every
// pingEvery.
func (c *session) checkAlive() {
	w := c.w.Load()
	if w == nil {
		return // handshakes have their own time limit
	}
	if c.alive.tickLasts() {
		w.closeFor(fmt.Errorf("%w: nothing heard for %v", ErrQuiet, QuietMax))
		return
	}
	sendAll(w, []wire.Ping{{Stamp: time.Since(epoch).Nanoseconds()}}, appendPings)
}

// openEngine opens the engine's session for the hello and reads until the connection ends.
func (c *session) openEngine(r *wire.Reader, f wire.Frame, log *slog.Logger) error {
	// Earlier versions do not know standbys: such a peer would take this scheduler for its leader.
	if _, leads := c.s.Leads(); !leads && c.version < leadVersion {
		return c.refuseHello(false, errStandby)
	}

	if f.Type == wire.TypeStandbyHello {
		return c.runStandby(f, r.Next)
	}

	if f.Type == wire.TypeFrontendHello {
		h, err := wire.DecodeFrontendHello(f)
		if err != nil {
			return c.refuseHello(true, err)
		}
		c.kind.Store(uint32(frontendSession))
		c.name = h.Name

		w := c.corkedWriter()
		port := &frontendPort{w: w}
		s, err := c.s.e.OpenFrontend(h, port)
		if err != nil {
			return c.dropHello(w, err)
		}

		defer s.Close()
		log.Info("frontend connected", "name", h.Name)
		defer log.Info("frontend left", "name", h.Name)
		return c.runFrames(r.Next, w, s.Number(), func(f wire.Frame) error { return c.frontendFrame(s, f) })
	}

	h, err := wire.DecodeBackendHello(f)
	if err != nil {
		return c.refuseHello(true, err)
	}
	c.kind.Store(uint32(backendSession))
	c.name = h.Name

	// The engine may send before the welcome is written, so the writer holds back its messages until then.
	w := c.corkedWriter()
	s, err := c.s.e.OpenBackend(h, &backendPort{w: w})
	if err != nil {
		return c.dropHello(w, err)
	}

	defer s.Close()
	c.backend.Store(s)
	c.s.mu.Lock()
	c.gpus = len(h.GPUs)
	c.s.mu.Unlock()

	log.Info("backend connected", "name", h.Name, "gpus", len(h.GPUs), "models", len(h.Models))
	defer log.Info("backend left", "name", h.Name)
	return c.runFrames(r.Next, w, 0, func(f wire.Frame) error { return c.backendFrame(s, f) })
}

// corkedWriter returns a writer that holds back messages until the welcome precedes them.
func (c *session) corkedWriter() *writer {
	w := newWriter(c.conn, c.s.o.WriteQueueMax)
	w.corked, w.version = true, c.version
	return w
}

func (c *session) runFrames(next func() (wire.Frame, error), w *writer, number uint32, frame func(wire.Frame) error) error {
	defer func() { <-w.done }()

	// From here on the session has no deadline: pings detect a dead peer.
	c.conn.SetDeadline(time.Time{})
	if err := c.sendWelcome(w, number); err != nil {
		return err
	}
	for {
		f, err := next()
		if err == nil {
			c.alive.heard.Add(1)
			err = frame(f)
		}
		if err != nil {
			w.closeFor(err)
			return w.closeReason(err)
		}
	}
}

// sendWelcome answers the hello, reports who leads, and releases the engine's messages behind that. From then on the
// session is told of changes; it happens under the lock, so that none is missed.
func (c *session) sendWelcome(w *writer, number uint32) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	first := wire.AppendWelcome(nil, wire.Welcome{Version: c.version, Session: number})
	if c.version >= leadVersion {
		first = wire.AppendLead(first, c.s.leadMessage())
	}
	c.w.Store(w)
	return w.uncorkWith(first)
}

// frontendFrame passes a frontend's message to the engine. The slices of Submits and Cancels are reused: these messages
// come with every request.
func (c *session) frontendFrame(s *engine.Frontend, f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeSubmit, wire.TypeEarlySubmit:
		if c.submit, err = wire.DecodeSubmits(c.submit, f); err == nil {
			s.Submit(c.submit)
		}
	case wire.TypeCancel:
		if c.cancel, err = wire.DecodeCancels(c.cancel, f); err == nil {
			s.Cancel(c.cancel)
		}

	case wire.TypeModelCommand:
		var m []wire.ModelCommand
		if m, err = wire.DecodeModelCommands(f); err == nil {
			s.Command(m)
		}
	case wire.TypePong:
		_, err = wire.DecodePong(f)
	case wire.TypeFollow:
		err = c.noteFollowed(f)
	default:
		err = fmt.Errorf("%w: %v frame from a frontend", wire.ErrMalformed, f.Type)
	}
	return err
}

// backendFrame passes a backend's message to the engine. A message that the engine finds impossible ends the session.
func (c *session) backendFrame(s *engine.Backend, f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeDone:
		if c.done, err = wire.DecodeDones(c.done, f); err == nil {
			s.Done(c.done)
		}
	case wire.TypeLoadable:
		var m []wire.Loadable
		if m, err = wire.DecodeLoadables(f); err == nil && !s.Offer(m) {
			err = fmt.Errorf("%w: %v frame that makes no sense", wire.ErrMalformed, f.Type)
		}
	case wire.TypePlacementReport:
		var m []wire.PlacementReport
		if m, err = wire.DecodePlacementReports(f); err == nil && !s.Report(m) {
			err = fmt.Errorf("%w: %v frame that makes no sense", wire.ErrMalformed, f.Type)
		}

	case wire.TypeModelAnswer:
		var m []wire.ModelAnswer
		if m, err = wire.DecodeModelAnswers(f); err == nil {
			s.Answer(m)
		}
	case wire.TypeUnserved:
		var u wire.Unserved
		if u, err = wire.DecodeUnserved(f); err == nil && !s.Unserved(u) {
			err = fmt.Errorf("%w: %v frame that makes no sense", wire.ErrMalformed, f.Type)
		}
	case wire.TypeSpareOffer:
		var m []wire.SpareOffer
		if m, err = wire.DecodeSpareOffers(f); err == nil {
			s.OfferSpare(m)
		}
	case wire.TypeSpareEnd:
		if c.ends, err = wire.DecodeSpareEnds(c.ends, f); err == nil {
			s.EndSpare(c.ends)
		}
	case wire.TypePong:
		var m wire.Pong
		if m, err = wire.DecodePong(f); err == nil {
			// The peer's delay between ping and pong is not part of the trip.
			s.RoundTrip(time.Since(epoch).Nanoseconds() - m.Stamp - m.Hold)
		}
	case wire.TypeFollow:
		err = c.noteFollowed(f)
	default:
		err = fmt.Errorf("%w: %v frame from a backend", wire.ErrMalformed, f.Type)
	}
	return err
}
