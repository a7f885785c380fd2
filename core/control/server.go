package control

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// ServerOptions are the scheduler's side of the sessions.
type ServerOptions struct {
	Token       string      // the token that every hello must carry; empty: none
	TLS         *tls.Config // nil: plain TCP
	SessionsMax int         // links at a time, counted after their hello; 0: SessionsMax
	// WriteQueueMax is the number of bytes that may wait for a peer before it is cut off; 0: WriteQueueMax.
	WriteQueueMax int
	Standby       bool         // another scheduler may lead: this one leads only after Lead
	Logger        *slog.Logger // nil: silent
	quiet         int32        // ticks of silence after which a peer counts as lost; 0: quietTicks
}

// Server is the scheduler's side: it turns TCP connections, and calls within the process, into sessions of one
// engine.
type Server struct {
	e   *engine.Engine
	o   ServerOptions
	log *slog.Logger

	mu         sync.Mutex
	closed     bool
	handshakes handshakes            // connections before their hello
	sessions   map[*session]struct{} // connections after it
	leading    leadership
	locals     map[io.Closer]struct{}
	links      linkLook // the latest look at the sessions' connections
	lns        map[net.Listener]struct{}
	running    sync.WaitGroup
	stop       chan struct{}
}

// NewServer returns a Server for e. Close ends its sessions but not e.
func NewServer(e *engine.Engine, o ServerOptions) *Server {
	if o.SessionsMax == 0 {
		o.SessionsMax = SessionsMax
	}
	if o.WriteQueueMax == 0 {
		o.WriteQueueMax = WriteQueueMax
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}

	s := &Server{e: e, o: o, log: o.Logger, sessions: map[*session]struct{}{}, locals: map[io.Closer]struct{}{},
		lns: map[net.Listener]struct{}{}, stop: make(chan struct{})}

	// A standby's engine must not act before the election.
	s.leading = leadership{leads: !o.Standby, changed: make(chan struct{}, 1)}
	_ = e.SetLeading(!o.Standby)

	s.handshakes = handshakes{max: handshakesMax, each: handshakesEach}
	s.running.Add(1)
	go s.pingSessions()
	return s
}

// Listen opens a listener, with a clear error if the port is taken.
func Listen(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: the port is in use; stop the other process or choose another port: %w", addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return ln, nil
}

// Serve accepts sessions until Close or until ln fails. It closes ln.
func (s *Server) Serve(ln net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		ln.Close()
		return ErrClosed
	}
	s.lns[ln] = struct{}{}
	s.mu.Unlock()
	defer ln.Close()

	for {
		conn, err := ln.Accept()
		if err != nil {
			select {
			case <-s.stop:
				return nil
			default:
			}

			if errors.Is(err, net.ErrClosed) {
				return nil
			}

			if !tryAgain(err) {
				return fmt.Errorf("accept: %w", err)
			}

			// Descriptors ran out, or a similar shortage: open sessions continue, and a later connection may succeed.
			s.log.Error("no connection can be accepted", "address", ln.Addr().String(), "err", err)
			time.Sleep(backoffMin)
			continue
		}
		s.acceptConnection(conn)
	}
}

// tryAgain reports whether an error concerns one connection, or a temporary shortage, and not the listener.
func tryAgain(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNABORTED)
}

// acceptConnection starts a connection's handshake, or closes the connection if there are too many handshakes.
func (s *Server) acceptConnection(conn net.Conn) {
	setUserTimeout(conn)
	c := &session{s: s, raw: conn, conn: conn, ended: make(chan struct{})}
	c.alive.patience = cmp.Or(s.o.quiet, quietTicks)

	// Checked and counted under one lock, so that Close waits for every accepted connection.
	s.mu.Lock()
	if s.closed || !s.handshakes.beginOne(c, time.Now()) {
		s.mu.Unlock()
		conn.Close()
		return
	}
	s.running.Add(1)
	s.mu.Unlock()

	go func() {
		defer s.running.Done()
		defer close(c.ended)
		c.serveConnection()

		s.mu.Lock()
		s.handshakes.endOne(c)
		delete(s.sessions, c)
		s.mu.Unlock()
		s.noteChange()
	}()
}

// establishSession turns a connection with a valid hello into a session.
func (s *Server) establishSession(c *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	// The handshake's place is free either way: a refused peer must not hold it.
	s.handshakes.endOne(c)
	if s.closed {
		return ErrClosed
	}
	if len(s.sessions) >= s.o.SessionsMax {
		return fmt.Errorf("%d sessions are open, at most %d are allowed", len(s.sessions), s.o.SessionsMax)
	}
	s.sessions[c] = struct{}{}
	return nil
}

// Close ends every session and listener and waits for their goroutines.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	for ln := range s.lns {
		ln.Close()
	}
	s.mu.Unlock()

	// Frontends go first and take their queued requests along. If backends left first, the engine would end those
	// requests for lack of a backend, although the next scheduler could still serve them.
	s.closeSessions(func(k sessionKind) bool { return k != backendSession })
	s.closeSessions(func(sessionKind) bool { return true })
	s.running.Wait()
	return nil
}

// closeSessions closes the sessions of some kinds and waits for them to end.
func (s *Server) closeSessions(which func(sessionKind) bool) {
	var remote []*session
	var local []io.Closer

	s.mu.Lock()
	for c := range s.sessions {
		if which(sessionKind(c.kind.Load())) {
			remote = append(remote, c)
		}
	}

	// Connections without a hello have no requests to lose, so they end in either round.
	remote = append(remote, s.handshakes.waiting...)
	for l := range s.locals {
		if _, ok := l.(*localBackend); which(localKind(ok)) {
			local = append(local, l)
		}
	}
	s.mu.Unlock()

	// All are closed before any is awaited, so that they end in parallel.
	for _, c := range remote {
		c.raw.Close()
	}
	for _, c := range remote {
		<-c.ended
	}
	for _, l := range local {
		l.Close()
	}
}

func localKind(backend bool) sessionKind {
	if backend {
		return backendSession
	}
	return frontendSession
}

// pingSessions pings every session and closes those that are silent. The answers of backends also measure the control
// delay.
func (s *Server) pingSessions() {
	defer s.running.Done()
	t := time.NewTicker(pingEvery)
	defer t.Stop()

	var live []*session
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}

		live = live[:0]
		s.mu.Lock()
		for c := range s.sessions {
			live = append(live, c)
		}
		s.mu.Unlock()

		// Outside the lock: thousands of writes must not delay connections that come and go.
		for _, c := range live {
			c.checkAlive()
		}
		s.lookAtLinks(live)
	}
}

var epoch = time.Now()

func appendPings(b []byte, m []wire.Ping) []byte {
	for _, p := range m {
		b = wire.AppendPing(b, p)
	}
	return b
}
