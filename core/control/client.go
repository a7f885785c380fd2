package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
)

// dialer is the client's half of a session: it connects, shakes hands, reads, and connects again
// when the session is lost.
type dialer struct {
	o      DialOptions
	hello  []byte // the encoded hello frame
	events interface{ Link(bool, error) }
	frame  func(wire.Frame) error // decodes one frame and tells the events; called by run only

	w      atomic.Pointer[writer] // nil while there is no session
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}
}

// DialFrontend opens a frontend's session. It tries until ctx ends (ten seconds when ctx has no
// deadline), a patient one then goes on by itself; a fatal refusal ends it at once. Afterwards ctx has no meaning for the link.
func DialFrontend(ctx context.Context, o DialOptions, hello wire.FrontendHello, ev FrontendEvents) (FrontendLink, error) {
	hello.Version = wire.Version
	if hello.Token == "" {
		hello.Token = o.Token
	}
	b, err := wire.AppendFrontendHello(nil, &hello)
	if err != nil {
		return nil, err
	}
	l := &frontendLink{ev: ev}
	if l.dialer, err = newDialer(o, b, ev, l.frame); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// DialBackend opens a backend's session, as DialFrontend does.
func DialBackend(ctx context.Context, o DialOptions, hello wire.BackendHello, ev BackendEvents) (BackendLink, error) {
	hello.Version = wire.Version
	if hello.Token == "" {
		hello.Token = o.Token
	}
	b, err := wire.AppendBackendHello(nil, &hello)
	if err != nil {
		return nil, err
	}
	l := &backendLink{ev: ev}
	if l.dialer, err = newDialer(o, b, ev, l.frame); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func newDialer(o DialOptions, hello []byte, ev interface{ Link(bool, error) }, frame func(wire.Frame) error) (*dialer, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d := &dialer{o: o, hello: hello, events: ev, frame: frame, ended: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// start opens the first session and hands it to run. A scheduler that is not there is left to run,
// if the options say so.
func (d *dialer) start(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialMax)
		defer cancel()
	}
	conn, r, err := d.retry(ctx)
	switch {
	case err == nil:
		go d.run(d.open(conn), r)
	case d.o.Patient && errors.Is(err, ErrUnavailable) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		d.o.Logger.Warn("waiting for the scheduler", "addr", d.o.Addr, "err", err)
		go d.run(nil, nil)
	default:
		d.cancel()
		return err
	}
	return nil
}

// retry connects until it works, ctx ends, or a fatal refusal comes before ctx was ever open.
func (d *dialer) retry(ctx context.Context) (net.Conn, *wire.Reader, error) {
	wait := backoffMin
	var why error // of the last attempt that ctx let end
	for {
		conn, r, err := d.connect(ctx)
		if err == nil {
			return conn, r, nil
		}
		if over(ctx) && why != nil {
			return nil, nil, unavailable(fmt.Errorf("%s: %w", d.o.Addr, why))
		}
		why = err
		var refused *RefusedError
		if errors.As(err, &refused) && refused.Fatal || errors.Is(err, wire.ErrVersion) {
			return nil, nil, err
		}
		d.o.Logger.Debug("scheduler not reached", "addr", d.o.Addr, "err", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return nil, nil, unavailable(fmt.Errorf("%s: %w", d.o.Addr, err))
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, backoffMax)
	}
}

// over tells whether ctx has ended, or is about to: a dial ends at its deadline, maybe before ctx itself.
func over(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(end)
}

// connect makes one connection and shakes hands on it.
func (d *dialer) connect(ctx context.Context) (net.Conn, *wire.Reader, error) {
	conn, err := (&net.Dialer{Timeout: handshakeMax}).DialContext(ctx, "tcp", d.o.Addr)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
	defer stop()
	conn, r, err := d.handshake(conn)
	if err != nil {
		return nil, nil, err
	}
	return conn, r, conn.SetDeadline(time.Time{})
}

func (d *dialer) handshake(conn net.Conn) (net.Conn, *wire.Reader, error) {
	conn = clientTLS(conn, d.o)
	fail := func(err error) (net.Conn, *wire.Reader, error) {
		conn.Close()
		return nil, nil, fmt.Errorf("handshake: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(handshakeMax)); err != nil {
		return fail(err)
	}
	if _, err := conn.Write(d.hello); err != nil {
		return fail(err)
	}
	r := wire.NewReader(conn)
	f, err := r.Next()
	if err != nil {
		return fail(err)
	}
	if f.Type == wire.TypeRefusal {
		m, err := wire.DecodeRefusal(f)
		if err != nil {
			return fail(err)
		}
		conn.Close()
		return nil, nil, &RefusedError{Fatal: m.Fatal, Text: m.Text}
	}
	if _, err := wire.DecodeWelcome(f); err != nil {
		return fail(err)
	}
	return conn, r, nil
}

// open lets calls on the link through to a connection.
func (d *dialer) open(conn net.Conn) *writer {
	w := newWriter(conn, WriteQueueMax)
	d.w.Store(w)
	return w
}

// run owns the sessions, one after the other, and makes every event call. Without a first one it
// begins by connecting.
func (d *dialer) run(w *writer, r *wire.Reader) {
	defer close(d.ended)
	for {
		if w != nil {
			err := d.session(w, r)
			if d.ctx.Err() != nil {
				d.events.Link(false, ErrClosed)
				return
			}
			d.events.Link(false, unavailable(err))
		}
		if w, r = d.again(); w == nil {
			return
		}
	}
}

// again connects until it works; nil once the link is closed.
func (d *dialer) again() (*writer, *wire.Reader) {
	for {
		conn, r, err := d.retry(d.ctx)
		if err == nil {
			return d.open(conn), r
		}
		if d.ctx.Err() != nil {
			return nil, nil
		}
		d.o.Logger.Error("scheduler refuses", "addr", d.o.Addr, "err", err, "again_in", refusedAgain)
		d.events.Link(false, unavailable(err))
		select {
		case <-d.ctx.Done():
			return nil, nil
		case <-time.After(refusedAgain):
		}
	}
}

// session reads one connection until it ends and says why.
func (d *dialer) session(w *writer, r *wire.Reader) error {
	defer func() { <-w.done }()
	defer d.w.Store(nil)
	stop := context.AfterFunc(d.ctx, func() { w.close(ErrClosed) })
	defer stop()
	var heard atomic.Uint32
	go watch(w, &heard)
	d.events.Link(true, nil)
	for {
		f, err := r.Next()
		if err == nil {
			heard.Add(1)
			err = d.read(w, f)
		}
		if err != nil {
			w.close(err)
			return w.reason(err)
		}
	}
}

// read answers pings and gives the rest to the link.
func (d *dialer) read(w *writer, f wire.Frame) error {
	switch f.Type {
	case wire.TypePing:
		m, err := wire.DecodePing(f)
		if err != nil {
			return err
		}
		return send(w, []wire.Pong{{Stamp: m.Stamp}}, appendPongs)
	case wire.TypeRefusal:
		m, err := wire.DecodeRefusal(f)
		if err != nil {
			return err
		}
		return &RefusedError{Fatal: m.Fatal, Text: m.Text}
	}
	return d.frame(f)
}

func appendPongs(b []byte, m []wire.Pong) []byte {
	for _, p := range m {
		b = wire.AppendPong(b, p)
	}
	return b
}

// Close ends the link and returns after its last event. An event must not call it.
func (d *dialer) Close() error {
	d.cancel()
	<-d.ended
	return nil
}

type frontendLink struct {
	*dialer
	ev       FrontendEvents
	outcomes []wire.Outcome // run's
}

func (l *frontendLink) frame(f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeOutcome:
		if l.outcomes, err = wire.DecodeOutcomes(l.outcomes, f); err == nil {
			l.ev.Outcomes(l.outcomes)
		}
	case wire.TypeModels:
		var m []wire.ModelInfo
		if m, err = wire.DecodeModels(f); err == nil {
			l.ev.Models(m)
		}
	default:
		err = fmt.Errorf("%w: %v frame to a frontend", wire.ErrMalformed, f.Type)
	}
	return err
}

func (l *frontendLink) Submit(m []wire.Submit) error {
	w := l.w.Load()
	if w == nil {
		return ErrUnavailable
	}
	if err := send(w, m, wire.AppendSubmits); err != nil {
		return unavailable(err)
	}
	return nil
}

func (l *frontendLink) Cancel(c wire.Cancel) error {
	w := l.w.Load()
	if w == nil {
		return ErrUnavailable
	}
	m := [1]wire.Cancel{c}
	if err := send(w, m[:], wire.AppendCancels); err != nil {
		return unavailable(err)
	}
	return nil
}

type backendLink struct {
	*dialer
	ev       BackendEvents
	peers    []wire.Peer    // run's
	executes []wire.Execute // run's
}

func (l *backendLink) frame(f wire.Frame) (err error) {
	switch f.Type {
	case wire.TypeExecute:
		if l.executes, err = wire.DecodeExecutes(l.executes, f); err == nil {
			l.ev.Execute(l.executes)
		}
	case wire.TypePeers:
		if l.peers, err = wire.DecodePeers(l.peers, f); err == nil {
			l.ev.Peers(l.peers)
		}
	default:
		err = fmt.Errorf("%w: %v frame to a backend", wire.ErrMalformed, f.Type)
	}
	return err
}

func (l *backendLink) Done(m []wire.Done) error {
	w := l.w.Load()
	if w == nil {
		return ErrUnavailable
	}
	if err := send(w, m, wire.AppendDones); err != nil {
		return unavailable(err)
	}
	return nil
}
