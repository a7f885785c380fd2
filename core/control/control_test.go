package control

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
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

// TestPlacementsAndReportsArrive carries the messages that load models while a backend serves.
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

// TestFrontendThatDoesNotReadIsCutOff floods the scheduler with refused requests and never reads an outcome. Another
// frontend is served meanwhile.
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

// TestFrontendVanishes: the connection breaks with queued requests. They are forgotten, and the backend is told.
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
			x, c := &echo{runner: *newRunner(nil), got: make(chan struct{}, 1)}, newCaller()
			hello := backendHello("m")
			hello.Models[0].Profile = []time.Duration{1}
			var back BackendLink
			var front FrontendLink
			var err error
			if o := (DialOptions{Addr: h.addr, quiet: calm}); local {
				back, err = h.s.Backend(hello, x)
				x.set(back)
				front, _ = h.s.Frontend(wire.FrontendHello{}, c)
			} else {
				back, err = DialBackend(ctx(t), o, hello, x)
				x.set(back)
				front, _ = DialFrontend(ctx(t), o, wire.FrontendHello{}, c)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer back.Close()
			defer front.Close()

			// A request that is sent before both links are up, or dropped, would be waited for without end.
			c.until(t, "model ready", func() bool { return c.models["m"].Ready })
			m := []wire.Submit{{Model: c.models["m"].ID, Budget: 60e9}}
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

// TestLogTellsWhoComesAndGoes shows that the scheduler's log reports a backend that dies.
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

// TestCloseWhileSessionsBegin shows that Close works at any time, even before a peer has sent a byte of TLS.
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
