package control

import (
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// ServerOptions are the scheduler's side of the sessions.
type ServerOptions struct {
	Token       string      // what every hello must carry; empty: none is asked
	TLS         *tls.Config // nil: plain TCP
	SessionsMax int         // 0: SessionsMax
	// WriteQueueMax is how many bytes may wait for a peer before it is cut off; 0: WriteQueueMax.
	WriteQueueMax int
	Logger        *slog.Logger // nil: silent
}

// Server is the scheduler's side: it turns connections, and calls within the process, into
// sessions of one engine.
type Server struct {
	e   *engine.Engine
	o   ServerOptions
	log *slog.Logger

	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	locals   map[io.Closer]struct{}
	lns      map[net.Listener]struct{}
	running  sync.WaitGroup
	stop     chan struct{}
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
	s.running.Add(1)
	go s.pinger()
	return s
}

// Listen opens a listener and says clearly when the port is taken.
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
			s.log.Warn("accept", "err", err)
			time.Sleep(backoffMin)
			continue
		}
		s.accept(conn)
	}
}

// tryAgain tells errors of one connection, or of a shortage that passes, from those of the listener.
func tryAgain(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ECONNABORTED)
}

func (s *Server) accept(conn net.Conn) {
	c := &session{s: s, raw: conn, conn: conn}
	s.mu.Lock()
	full := len(s.sessions) >= s.o.SessionsMax
	if s.closed || full {
		s.mu.Unlock()
		if full {
			text := fmt.Sprintf("%d sessions are open, at most %d are allowed", s.o.SessionsMax, s.o.SessionsMax)
			conn.SetWriteDeadline(time.Now().Add(backoffMin))
			conn.Write(wire.AppendRefusal(nil, wire.Refusal{Text: text}))
			s.log.Warn("session refused", "peer", conn.RemoteAddr(), "why", text)
		}
		conn.Close()
		return
	}
	s.sessions[c] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.running.Done()
		c.serve()
		s.mu.Lock()
		delete(s.sessions, c)
		s.mu.Unlock()
	}()
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
	for c := range s.sessions {
		c.raw.Close()
	}
	var locals []io.Closer
	for l := range s.locals {
		locals = append(locals, l)
	}
	s.mu.Unlock()
	for _, l := range locals {
		l.Close()
	}
	s.running.Wait()
	return nil
}

// pinger asks every session for a sign of life; backends' answers measure the control delay.
func (s *Server) pinger() {
	defer s.running.Done()
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	var live []*session
	for turn := 0; ; turn++ {
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
		for _, c := range live {
			if w := c.w.Load(); w != nil && (c.delays.Load() || turn%10 == 0) {
				send(w, []wire.Ping{{Stamp: time.Since(epoch).Nanoseconds()}}, appendPings)
			}
		}
	}
}

var epoch = time.Now()

func appendPings(b []byte, m []wire.Ping) []byte {
	for _, p := range m {
		b = wire.AppendPing(b, p)
	}
	return b
}

// session is one TCP peer.
type session struct {
	s      *Server
	raw    net.Conn               // Close's, from any goroutine
	conn   net.Conn               // serve's: raw, or TLS over it
	w      atomic.Pointer[writer] // nil before the handshake's answer
	delays atomic.Bool            // a backend: its pings are measured
	submit []wire.Submit          // the reader's
	cancel []wire.Cancel
	done   []wire.Done
}

// serve runs the session to its end. Every error of a peer ends its session and nothing else.
func (c *session) serve() {
	defer c.raw.Close()
	log := c.s.log.With("peer", c.conn.RemoteAddr().String())
	if c.s.o.TLS != nil {
		c.conn = tls.Server(c.conn, c.s.o.TLS)
	}
	c.conn.SetDeadline(time.Now().Add(handshakeMax))
	r := wire.NewReader(c.conn)
	hello, err := c.hello(r)
	if err == nil {
		err = c.open(r, hello, log)
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		log.Debug("session ended", "err", err)
	default:
		log.Warn("session ended", "err", err)
	}
}

// hello reads the hello, or refuses it.
func (c *session) hello(r *wire.Reader) (wire.Frame, error) {
	t, b, err := r.Peek(wire.HelloPeekBytes)
	if errors.Is(err, wire.ErrVersion) {
		return wire.Frame{}, c.refuse(true, err)
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) && plain.Conn != nil {
		c.conn = plain.Conn // in the open, as the peer speaks
		return wire.Frame{}, c.refuse(true, errPlain)
	}
	if err != nil {
		return wire.Frame{}, fmt.Errorf("handshake: %w", err)
	}
	if t != wire.TypeFrontendHello && t != wire.TypeBackendHello {
		return wire.Frame{}, c.refuse(true, fmt.Errorf("%w: the first frame is %v, want a hello", wire.ErrMalformed, t))
	}
	version, token, err := wire.PeekHello(b)
	if err != nil {
		return wire.Frame{}, c.refuse(true, err)
	}
	if version != wire.Version {
		return wire.Frame{}, c.refuse(true, fmt.Errorf("%w: the hello says version %d, this is version %d", wire.ErrVersion, version, wire.Version))
	}
	if err := c.s.admit(token); err != nil {
		return wire.Frame{}, c.refuse(true, err)
	}
	f, err := r.Next()
	if err != nil {
		return f, fmt.Errorf("handshake: %w", err)
	}
	return f, nil
}

var errPlain = errors.New("the scheduler speaks TLS and the peer does not: give the peer the certificate of the scheduler's authority")

var errToken = errors.New("wrong token: give the peer the scheduler's token")

func (s *Server) admit(token string) error {
	if s.o.Token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.o.Token)) != 1 {
		return errToken
	}
	return nil
}

// refuse sends the no and returns why.
func (c *session) refuse(fatal bool, why error) error {
	c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	c.conn.Write(wire.AppendRefusal(nil, wire.Refusal{Fatal: fatal, Text: why.Error()}))
	return fmt.Errorf("refused: %w", why)
}

// open opens the engine's session for the hello and reads until the connection ends.
func (c *session) open(r *wire.Reader, f wire.Frame, log *slog.Logger) error {
	if f.Type == wire.TypeFrontendHello {
		h, err := wire.DecodeFrontendHello(f)
		if err != nil {
			return c.refuse(true, err)
		}
		w := c.corked()
		port := &frontendPort{w: w}
		s, err := c.s.e.OpenFrontend(h, port)
		if err != nil {
			return c.drop(w, err)
		}
		defer s.Close()
		log.Info("frontend connected", "name", h.Name)
		defer log.Info("frontend left", "name", h.Name)
		return c.run(r, w, s.Number(), func(f wire.Frame) error { return c.frontendFrame(s, f) })
	}
	h, err := wire.DecodeBackendHello(f)
	if err != nil {
		return c.refuse(true, err)
	}
	c.delays.Store(true)
	w := c.corked()
	s, err := c.s.e.OpenBackend(h, &backendPort{w: w})
	if err != nil {
		return c.drop(w, err)
	}
	defer s.Close()
	log.Info("backend connected", "name", h.Name, "gpus", len(h.GPUs), "models", len(h.Models))
	defer log.Info("backend left", "name", h.Name)
	return c.run(r, w, 0, func(f wire.Frame) error { return c.backendFrame(s, f) })
}

// corked returns a writer that holds everything back until the welcome leads it.
func (c *session) corked() *writer {
	w := newWriter(c.conn, c.s.o.WriteQueueMax)
	w.corked = true
	return w
}

// drop refuses a hello that the engine did not take.
func (c *session) drop(w *writer, why error) error {
	err := c.refuse(false, why)
	w.close(err)
	<-w.done
	return err
}

func (c *session) run(r *wire.Reader, w *writer, number uint32, frame func(wire.Frame) error) error {
	defer func() { <-w.done }()
	c.conn.SetDeadline(time.Time{})
	if err := w.uncork(wire.AppendWelcome(nil, wire.Welcome{Version: wire.Version, Session: number})); err != nil {
		return err
	}
	c.w.Store(w)
	var heard atomic.Uint32
	go watch(w, &heard)
	for {
		f, err := r.Next()
		if err == nil {
			heard.Add(1)
			err = frame(f)
		}
		if err != nil {
			w.close(err)
			return w.reason(err)
		}
	}
}

func (c *session) frontendFrame(s *engine.Frontend, f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeSubmit:
		if c.submit, err = wire.DecodeSubmits(c.submit, f); err == nil {
			s.Submit(c.submit)
		}
	case wire.TypeCancel:
		if c.cancel, err = wire.DecodeCancels(c.cancel, f); err == nil {
			s.Cancel(c.cancel)
		}
	case wire.TypePong:
		_, err = wire.DecodePong(f)
	default:
		err = fmt.Errorf("%w: %v frame from a frontend", wire.ErrMalformed, f.Type)
	}
	return err
}

func (c *session) backendFrame(s *engine.Backend, f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeDone:
		if c.done, err = wire.DecodeDones(c.done, f); err == nil {
			s.Done(c.done)
		}
	case wire.TypePong:
		var m wire.Pong
		if m, err = wire.DecodePong(f); err == nil {
			s.RoundTrip(time.Since(epoch).Nanoseconds() - m.Stamp - m.Hold)
		}
	default:
		err = fmt.Errorf("%w: %v frame from a backend", wire.ErrMalformed, f.Type)
	}
	return err
}

// frontendPort sends the engine's messages to a frontend over TCP. A send that fails has cut the
// connection; the reader ends the session.
type frontendPort struct{ w *writer }

func (p *frontendPort) Models(m []wire.ModelInfo) { sendErr(p.w, m, wire.AppendModels) }
func (p *frontendPort) Outcomes(m []wire.Outcome) { send(p.w, m, wire.AppendOutcomes) }

type backendPort struct {
	w        *writer
	executes []wire.Execute // scratch, under w's lock
}

func (p *backendPort) Peers(m []wire.Peer)      { sendErr(p.w, m, wire.AppendPeers) }
func (p *backendPort) Execute(m []engine.Order) { send(p.w, m, p.append) }
func (p *backendPort) Cut(err error)            { p.w.close(err) }

func (p *backendPort) append(dst []byte, m []engine.Order) []byte {
	p.executes = engine.AppendMessages(p.executes[:0], m)
	return wire.AppendExecutes(dst, p.executes)
}
