package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a scheduler listening on loopback.
type house struct {
	t    *testing.T
	e    *engine.Engine
	s    *Server
	addr string
}

func open(t *testing.T, o ServerOptions) *house {
	t.Helper()
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return openOn(t, ln, o)
}

// rareAddr is for a port that is closed and opened again: hardly anybody else of this host binds there meanwhile.
const rareAddr = "127.0.0.2:0"

// openOn starts a scheduler that lets no request wait while a GPU idles.
func openOn(t *testing.T, ln net.Listener, o ServerOptions) *house {
	t.Helper()
	return openEngine(t, ln, o, engine.Options{Prompt: 1})
}

func openEngine(t *testing.T, ln net.Listener, o ServerOptions, eo engine.Options) *house {
	t.Helper()
	e, err := engine.New(eo)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{t: t, e: e, s: NewServer(e, o), addr: ln.Addr().String()}
	served := make(chan error, 1)
	go func() { served <- h.s.Serve(ln) }()
	t.Cleanup(func() {
		h.close()
		if err := <-served; err != nil && !errors.Is(err, ErrClosed) { // closed before it began
			t.Errorf("Serve: %v", err)
		}
	})
	return h
}

func (h *house) close() {
	h.s.Close()
	h.e.Close()
}

// caller records what a frontend is told.
type caller struct {
	mu       sync.Mutex
	models   map[string]model.Info
	outcomes map[uint64]model.Reason
	twice    int
	answers  []wire.ModelAnswer
	ups      int
	downs    int
	changed  chan struct{}
}

func newCaller() *caller {
	return &caller{models: map[string]model.Info{}, outcomes: map[uint64]model.Reason{}, changed: make(chan struct{}, 1)}
}

func (c *caller) note(f func()) {
	c.mu.Lock()
	f()
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *caller) Models(m []model.Info) {
	c.note(func() {
		for _, i := range m {
			c.models[i.Name] = i
		}
	})
}

func (c *caller) Answers(m []wire.ModelAnswer) {
	c.note(func() { c.answers = append(c.answers, m...) })
}

func (c *caller) Outcomes(m []wire.Outcome) {
	c.note(func() {
		for _, o := range m {
			if _, ok := c.outcomes[o.ID]; ok {
				c.twice++
			}
			c.outcomes[o.ID] = o.Reason
		}
	})
}

func (c *caller) Link(up bool, _ error) {
	c.note(func() {
		if up {
			c.ups++
		} else {
			c.downs++
		}
	})
}

// until waits until ok holds; ok runs with the lock held.
func (c *caller) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		c.mu.Lock()
		done := ok()
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// runner is a backend that reports every batch done at once, and answers by the answer function
// as the data plane would.
type runner struct {
	caller
	link   BackendLink
	steps  int // of spare work
	linked chan struct{}
	answer func(wire.Item)
	mute   bool // takes batches and says nothing
	peers  map[uint32]string
	dones  []wire.Done
	asked  []wire.Placement
	took   int
}

func newRunner(answer func(wire.Item)) *runner {
	return &runner{caller: *newCaller(), linked: make(chan struct{}), answer: answer, peers: map[uint32]string{}}
}

func (r *runner) Command(m []wire.ModelCommand) {
	for _, c := range m {
		go func() {
			<-r.linked
			_ = r.link.Answer(wire.ModelAnswer{Number: c.Number, Code: wire.CommandFailed, Text: c.Model})
		}()
	}
}

func (r *runner) Place(m []wire.Placement) {
	r.note(func() { r.asked = append(r.asked, m...) })
}

func (r *runner) Peers(m []wire.Peer) {
	r.note(func() {
		for _, p := range m {
			r.peers[p.Frontend] = p.DataAddr
		}
	})
}

func (r *runner) Execute(m []wire.Execute) {
	<-r.linked
	r.note(func() { r.took += len(m) })
	if r.mute {
		return
	}
	r.dones = r.dones[:0]
	for _, x := range m {
		for _, i := range x.Items {
			r.answer(i)
		}
		r.dones = append(r.dones, wire.Done{Batch: x.Batch, GPU: x.GPU, Exec: 1e6})
	}
	r.link.Done(r.dones)
}

func (r *runner) set(l BackendLink) { r.link = l; close(r.linked) }

func backendHello(models ...string) wire.BackendHello {
	h := wire.BackendHello{Name: "b", GPUs: []string{"gpu0"}}
	for _, m := range models {
		h.Models = append(h.Models, wire.BackendModel{Info: model.Info{Name: m, Version: "1", SLO: 100e6}, Profile: []time.Duration{1e6, 1.2e6, 1.4e6, 1.6e6}})
	}
	return h
}

// answered counts answers by request id.
type answered struct {
	mu sync.Mutex
	n  map[uint64]int
}

func (a *answered) add(i wire.Item) {
	a.mu.Lock()
	a.n[i.ID]++
	a.mu.Unlock()
}

func (a *answered) total() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.n {
		n += k
	}
	return n
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return c
}

// dialBoth opens a frontend's and a backend's session, over TCP or within the process.
func (h *house) dialBoth(local bool, o DialOptions, c *caller, r *runner, hello wire.BackendHello) (FrontendLink, BackendLink) {
	h.t.Helper()
	o.Addr = h.addr
	var b BackendLink
	var f FrontendLink
	var err error
	if local {
		b, err = h.s.Backend(hello, r)
	} else {
		b, err = DialBackend(ctx(h.t), o, hello, r)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	r.set(b)
	front := wire.FrontendHello{Name: "f", DataAddr: "addr-of-f"}
	if local {
		addr, forget := ListenInProcess(h.s.Frontend, h.s.Backend)
		h.t.Cleanup(func() { _ = forget() })
		o.Addr = addr
	}
	f, err = DialFrontend(ctx(h.t), o, front, c)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close(); b.Close() })
	return f, b
}

func TestRequestsAreAnsweredOnce(t *testing.T) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ServerOptions{Token: "secret"})
			c, a := newCaller(), &answered{n: map[uint64]int{}}
			r := newRunner(a.add)
			f, _ := h.dialBoth(local, DialOptions{Token: "secret"}, c, r, backendHello("m"))
			c.until(t, "model ready", func() bool { return c.models["m"].Ready })
			id := c.models["m"].ID
			const n = 500
			for i := uint64(1); i <= n; i++ {
				if err := f.Submit([]wire.Submit{{ID: i, Model: id, Budget: 2e9}}); err != nil {
					t.Fatal(err)
				}
			}
			f.Submit([]wire.Submit{{ID: n + 1, Model: 99, Budget: 1e9}, {ID: n + 2, Model: id, Budget: -5}})
			c.until(t, "refusals", func() bool { return len(c.outcomes) >= 2 })
			deadline := time.Now().Add(10 * time.Second)
			for a.total()+len(snapshot(c)) < n+2 && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			got := snapshot(c)
			if got[n+1] != model.UnknownModel || got[n+2] != model.DeadlinePast || len(got)+a.total() != n+2 || c.twice != 0 {
				t.Errorf("answers %d, outcomes %v", a.total(), got)
			}
			for i, why := range got { // a host that stalls for long may drop the last ones
				if i <= n && why != model.DeadlineCannotBeMet {
					t.Errorf("request %d: %v", i, why)
				}
			}
			r.until(t, "the frontend's address", func() bool {
				for _, addr := range r.peers {
					return addr == "addr-of-f"
				}
				return false
			})
			f.Close()
			r.until(t, "the frontend gone", func() bool {
				for _, addr := range r.peers {
					return addr == ""
				}
				return false
			})
			if err := f.Submit(nil); !errors.Is(err, ErrUnavailable) {
				t.Errorf("submit after close: %v", err)
			}
		})
	}
}

// TestPlacementsAndReportsArrive carries the messages by which models are loaded while a backend serves.
func TestPlacementsAndReportsArrive(t *testing.T) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ServerOptions{})
			c, r := newCaller(), newRunner(func(wire.Item) {})
			hello := backendHello("m", "later")
			hello.Models[1].Loaded = []bool{false}
			_, b := h.dialBoth(local, DialOptions{}, c, r, hello)
			c.until(t, "model ready", func() bool { return c.models["m"].Ready })
			want := wire.Placement{Number: 7, Op: wire.Load, Model: 1}
			if err := h.e.Place("b", []wire.Placement{want}); err != nil {
				t.Fatal(err)
			}
			r.until(t, "the placement", func() bool { return len(r.asked) == 1 && r.asked[0] == want })
			if err := b.Report([]wire.PlacementReport{{Number: 7, Model: 1, State: wire.Loaded}}); err != nil {
				t.Fatal(err)
			}
			c.until(t, "the model that was loaded", func() bool { return c.models["later"].Ready })

			if err := b.Offer([]wire.Loadable{{Number: 2, Model: backendHello("new").Models[0]}}); err != nil {
				t.Fatal(err)
			}
			if err := b.Report([]wire.PlacementReport{{Model: 2, State: wire.Loaded}}); err != nil {
				t.Fatal(err)
			}
			c.until(t, "the model that is new", func() bool { return c.models["new"].Ready })
		})
	}
}

func snapshot(c *caller) map[uint64]model.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[uint64]model.Reason{}
	for k, v := range c.outcomes {
		out[k] = v
	}
	return out
}

func TestHandshakeRefusals(t *testing.T) {
	h := open(t, ServerOptions{Token: "secret"})
	_, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr, Token: "guess"}, wire.FrontendHello{}, newCaller())
	var refused *RefusedError
	if !errors.As(err, &refused) || !refused.Fatal || !strings.Contains(err.Error(), "wrong token") {
		t.Errorf("wrong token: %v", err)
	}
	bad := backendHello("m")
	bad.Models[0].Profile = []time.Duration{5, 4}
	short, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err = DialBackend(short, DialOptions{Addr: h.addr, Token: "secret"}, bad, newRunner(nil)); err == nil || !strings.Contains(err.Error(), `model "m"`) {
		t.Errorf("profile that falls: %v", err)
	}
	if _, err = DialFrontend(ctx(t), DialOptions{}, wire.FrontendHello{}, newCaller()); err == nil || !strings.Contains(err.Error(), "addr") {
		t.Errorf("no address: %v, want an error that names it", err)
	}
	if _, err = DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{Name: strings.Repeat("x", 999)}, newCaller()); !errors.Is(err, wire.ErrLimit) {
		t.Errorf("long name: %v", err)
	}
}

func TestOtherVersionIsRefusedByName(t *testing.T) {
	h := open(t, ServerOptions{})
	b, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
	b[5] = wire.Version + 1
	got := converse(t, h.addr, b)
	if !strings.Contains(got, fmt.Sprintf("this is version %d", wire.Version)) {
		t.Errorf("answer %q", got)
	}
}

// converse sends bytes and returns the text of the refusal that comes back.
func converse(t *testing.T, addr string, b []byte) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.Write(b)
	f, err := wire.NewReader(conn).Next()
	if err != nil {
		return err.Error()
	}
	m, err := wire.DecodeRefusal(f)
	if err != nil {
		t.Fatalf("%v: %v", f.Type, err)
	}
	return m.Text
}

func TestGarbageEndsOnlyItsOwnSession(t *testing.T) {
	h := open(t, ServerOptions{})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{}, c, newRunner(a.add), backendHello("m"))
	for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 4096), "\x00"} {
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(garbage))
		conn.(*net.TCPConn).CloseWrite()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		io.Copy(io.Discard, conn)
		conn.Close()
	}
	hello, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.Write(append(hello, wire.AppendDones(nil, []wire.Done{{Batch: 1}})...)) // a frontend does not report batches
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	io.Copy(io.Discard, conn) // ends: the session was given up
	conn.Close()
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}})
	waitFor(t, "an answer", func() bool { return a.total() == 1 })
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestSessionsLimit(t *testing.T) {
	h := open(t, ServerOptions{SessionsMax: 2})
	var links []FrontendLink
	for range 2 {
		l, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
	short, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := DialFrontend(short, DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "2 sessions are open") {
		t.Errorf("third session: %v", err)
	}
	links[0].Close()
	l, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	links[1].Close()
}

func TestPortInUse(t *testing.T) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = Listen(ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "the port is in use") || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("second listener: %v", err)
	}
}

func TestSlowPeerIsCutOff(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	w := newWriter(a, 1000)
	var err error
	for range 1000 {
		if err = sendAll(w, []wire.Outcome{{ID: 1}}, wire.AppendOutcomes); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrSlowPeer) {
		t.Errorf("a peer that reads nothing: %v", err)
	}
	<-w.done
}

// TestFrontendThatDoesNotReadIsCutOff floods the scheduler with refused requests and never reads an
// outcome; another frontend is served meanwhile.
func TestFrontendThatDoesNotReadIsCutOff(t *testing.T) {
	h := open(t, ServerOptions{WriteQueueMax: 64 << 10})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{}, c, newRunner(a.add), backendHello("m"))
	hello, _ := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version})
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	flood := make([]wire.Submit, 10_000)
	for i := range flood {
		flood[i] = wire.Submit{ID: uint64(i), Model: 1 << 20}
	}
	frame := wire.AppendSubmits(nil, flood)
	conn.Write(hello)
	for err == nil {
		_, err = conn.Write(frame)
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("it was not cut off: %v", err)
	}
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}})
	waitFor(t, "an answer", func() bool { return a.total() == 1 })
}

// TestFrontendVanishes: the connection breaks with requests queued; they are forgotten and the
// backend is told.
func TestFrontendVanishes(t *testing.T) {
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := openEngine(t, ln, ServerOptions{}, engine.Options{}) // requests wait to be batched
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	r := newRunner(a.add)
	f, _ := h.dialBoth(false, DialOptions{}, c, r, backendHello("m"))
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 60e9}})
	waitFor(t, "the request queued", func() bool { return h.e.Stats().Queued == 1 })
	f.(*frontendLink).leaderWriter().conn.Close()
	r.until(t, "the backend told", func() bool {
		for _, addr := range r.peers {
			if addr == "" {
				return true
			}
		}
		return false
	})
	if st := h.e.Stats(); st.Queued != 0 || a.total() != 0 {
		t.Errorf("queued %d, answered %d", st.Queued, a.total())
	}
	c.until(t, "a new session", func() bool { return c.ups == 2 })
}

// TestRequestPathAllocatesNothing covers submit, dispatch, execute and done, over TCP and in process.
func TestRequestPathAllocatesNothing(t *testing.T) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ServerOptions{})
			x := &echo{runner: *newRunner(nil), got: make(chan struct{}, 1)}
			hello := backendHello("m")
			hello.Models[0].Profile = []time.Duration{1}
			var back BackendLink
			var front FrontendLink
			var err error
			if o := (DialOptions{Addr: h.addr}); local {
				back, err = h.s.Backend(hello, x)
				x.set(back)
				front, _ = h.s.Frontend(wire.FrontendHello{}, newCaller())
			} else {
				back, err = DialBackend(ctx(t), o, hello, x)
				x.set(back)
				front, _ = DialFrontend(ctx(t), o, wire.FrontendHello{}, newCaller())
			}
			if err != nil {
				t.Fatal(err)
			}
			defer back.Close()
			defer front.Close()
			m := []wire.Submit{{Budget: 60e9}} // one that was dropped would be waited for without end
			turn := func() {
				m[0].ID++
				front.Submit(m)
				<-x.got
			}
			for range 200 {
				turn()
			}
			if n := testing.AllocsPerRun(500, turn); n > 0 {
				t.Errorf("%v allocations per request", n)
			}
		})
	}
}

func TestLinksReconnectAfterARestart(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	h := openOn(t, ln, ServerOptions{})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{}, c, newRunner(a.add), backendHello("m"))
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	h.close()
	c.until(t, "link down", func() bool { return c.downs == 1 })
	if err := f.Submit([]wire.Submit{{ID: 1}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("submit while down: %v", err)
	}
	c.note(func() { clear(c.models) })
	if ln, err = Listen(h.addr); err != nil {
		t.Fatal(err)
	}
	h = openOn(t, ln, ServerOptions{})
	c.until(t, "link up, model ready", func() bool { return c.ups == 2 && c.models["m"].Ready })
	if err := f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%+v", h.e.Stats())
		}
	}()
	waitFor(t, "an answer", func() bool { return a.total() == 1 })
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := DialFrontend(short, DialOptions{Addr: addr}, wire.FrontendHello{}, newCaller()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
}

// TestLogTellsWhoComesAndGoes: a backend that dies is news to whoever reads the scheduler's log.
func TestLogTellsWhoComesAndGoes(t *testing.T) {
	var log logtest.Buffer
	h := open(t, ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	hello := backendHello("m")
	hello.Name = "b7"
	f, b := h.dialBoth(false, DialOptions{}, newCaller(), newRunner(func(wire.Item) {}), hello)
	f.Close()
	b.Close()
	for _, want := range []string{`"frontend connected"`, `"backend connected"`, `"frontend left"`, `msg="backend left" `, "name=b7"} {
		waitFor(t, want, func() bool { return strings.Contains(log.String(), want) })
	}
}

// TestPatientDialWaitsForTheScheduler: parts may start in any order, however long the first waits; a
// no is still an error, and so is a caller that gives up.
func TestPatientDialWaitsForTheScheduler(t *testing.T) {
	ln, err := Listen(rareAddr)
	if err != nil {
		t.Fatal(err)
	}
	o := DialOptions{Addr: ln.Addr().String(), Token: "0123456789abcdef", Patient: true}
	ln.Close()
	dial := func(ctx context.Context, o DialOptions, c *caller) (FrontendLink, error) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return DialFrontend(ctx, o, wire.FrontendHello{}, c)
	}
	c := newCaller()
	f, err := dial(ctx(t), o, c)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Submit([]wire.Submit{{ID: 1}}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("submit before the first session: %v", err)
	}
	if idle, err := dial(ctx(t), o, newCaller()); err != nil || idle.Close() != nil {
		t.Errorf("closed before the first session: %v", err)
	}
	gone, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := dial(gone, o, newCaller()); !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up: %v", err)
	}
	if ln, err = Listen(o.Addr); err != nil {
		t.Fatal(err)
	}
	openOn(t, ln, ServerOptions{Token: o.Token})
	c.until(t, "link up", func() bool { return c.ups == 1 })
	o.Token = "another"
	var refused *RefusedError
	if _, err := DialFrontend(ctx(t), o, wire.FrontendHello{}, newCaller()); !errors.As(err, &refused) {
		t.Errorf("another token: got %v, want the refusal", err)
	}
}

// TestCloseWhileSessionsBegin: Close comes when it comes, also before a peer has said a word of TLS.
func TestCloseWhileSessionsBegin(t *testing.T) {
	h := open(t, ServerOptions{TLS: &tls.Config{}})
	for range 20 {
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	waitFor(t, "sessions", func() bool {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		return len(h.s.handshakes.waiting) > 0
	})
	h.close()
}

// onWrite is called for each line of a log.
type onWrite func()

func (f onWrite) Write(line []byte) (int, error) { f(); return len(line), nil }

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	h := open(t, ServerOptions{TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	f, _ := h.dialBoth(false, DialOptions{TLS: &tls.Config{RootCAs: roots}}, c, newRunner(a.add), backendHello("m"))
	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	f.Submit([]wire.Submit{{ID: 1, Model: c.models["m"].ID, Budget: 20e9}})
	waitFor(t, "an answer", func() bool { return a.total() == 1 })

	// A dial that is given up tells why its latest attempt failed: it is given up once its log names the first.
	short, cancel := context.WithCancel(ctx(t))
	defer cancel()
	log := slog.New(slog.NewTextHandler(onWrite(cancel), &slog.HandlerOptions{Level: slog.LevelDebug}))
	var stranger x509.UnknownAuthorityError
	if _, err := DialFrontend(short, DialOptions{Addr: h.addr, TLS: &tls.Config{}, Logger: log}, wire.FrontendHello{}, newCaller()); !errors.As(err, &stranger) {
		t.Errorf("an unknown certificate: %v", err)
	}
	var refused *RefusedError
	_, err = DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if !errors.As(err, &refused) || !refused.Fatal || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("without TLS: %v", err)
	}
}
