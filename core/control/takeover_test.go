package control

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

// pair is two schedulers of one cluster with a frontend and a backend that know both.
type pair struct {
	t    *testing.T
	s    [2]*house
	log  [2]*logtest.Buffer
	addr string
	c    *caller
	r    *runner
	a    *answered
	f    FrontendLink
}

// openPair lets the first scheduler lead in epoch 1. quiet is the links' patience, in ticks. through may put
// something between the peers and a scheduler; nil: nothing.
func openPair(t *testing.T, quiet int32, through func(i int, addr string) string) *pair {
	t.Helper()
	p := &pair{t: t, c: newCaller(), a: &answered{n: map[uint64]int{}}}
	var addrs []string
	for i := range p.s {
		p.log[i] = new(logtest.Buffer)
		p.s[i] = open(t, ServerOptions{Standby: true, quiet: quiet, Logger: slog.New(slog.NewTextHandler(p.log[i], nil))})
		addr := p.s[i].addr
		if through != nil {
			addr = through(i, addr)
		}
		addrs = append(addrs, addr)
	}
	p.s[0].s.Lead(1)
	p.s[1].s.StandBy(1)
	p.addr = strings.Join(addrs, ",")

	p.r = newRunner(p.a.add)
	b, err := DialBackend(ctx(t), DialOptions{Addr: p.addr, quiet: quiet}, backendHello("m"), p.r)
	if err != nil {
		t.Fatal(err)
	}
	p.r.set(b)
	t.Cleanup(func() { b.Close() })
	if p.f, err = DialFrontend(ctx(t), DialOptions{Addr: p.addr, quiet: quiet}, wire.FrontendHello{Name: "f", DataAddr: "addr-of-f"}, p.c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.f.Close() })
	p.c.until(t, "the leader's model is ready", func() bool { return p.c.models["m"].Ready })
	p.view(1, "the standby hears that the leader is well", func(v View) bool { return v.Epoch == 1 && v.Alive == 1 })
	return p
}

func (p *pair) view(i int, what string, ok func(View) bool) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%+v", p.s[i].s.View())
		}
	}()
	waitFor(p.t, what, func() bool { return ok(p.s[i].s.View()) })
}

// ask submits a request to the leader and waits for its answer.
func (p *pair) ask(id uint64) {
	p.t.Helper()
	before := p.a.total()
	p.c.mu.Lock()
	model := p.c.models["m"].ID
	p.c.mu.Unlock()
	if err := p.f.Submit([]wire.Submit{{ID: id, Model: model, Budget: 60e9}}); err != nil {
		p.t.Fatal(err)
	}
	waitFor(p.t, "an answer", func() bool { return p.a.total() == before+1 })
}

// TestStandbyIsWarm: when the leader's process ends, the GPUs tell the standby so. From the moment when it leads, it
// serves with all the state that it needs.
func TestStandbyIsWarm(t *testing.T) {
	p := openPair(t, calm, nil)
	p.ask(1)
	p.s[0].close()
	p.view(1, "the standby hears that the leader is lost", func(v View) bool { return v.Epoch == 1 && v.Lost == 1 && v.GPUs == 1 })
	p.c.until(t, "the frontend has lost the leader", func() bool { return p.c.downs == 1 })

	p.c.note(func() { clear(p.c.models) })
	p.s[1].s.Lead(2)
	p.c.until(t, "the new leader's model is ready", func() bool { return p.c.ups == 2 && p.c.models["m"].Ready })
	p.ask(2)
	p.view(1, "the backend follows the new leader", func(v View) bool { return v.Epoch == 2 && v.Alive == 1 && v.Lost == 0 })
}

// TestOldLeaderOrdersNothing: while the old leader still believes that it leads, and has its links, nobody obeys its
// orders. Once it hears of the new epoch it stands by and can lead again.
func TestOldLeaderOrdersNothing(t *testing.T) {
	p := openPair(t, calm, nil)
	p.ask(1)
	p.s[1].s.Lead(2)
	p.c.until(t, "the frontend follows the new leader", func() bool { return p.c.ups == 2 })
	p.ask(2)

	// A peer that knows only the old leader makes it order batches.
	old := newCaller()
	f, err := DialFrontend(ctx(t), DialOptions{Addr: p.s[0].addr, quiet: calm}, wire.FrontendHello{Name: "left behind"}, old)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old.until(t, "the old leader announces its model", func() bool { return old.models["m"].Ready })
	before := p.a.total()
	f.Submit([]wire.Submit{{ID: 1, Model: old.models["m"].ID, Budget: 100e6}})
	p.view(0, "the old leader hears of the new epoch", func(v View) bool { return v.Epoch == 2 })
	waitFor(t, "the order is sent", func() bool {
		m := p.s[0].e.Stats().Models
		return len(m) == 1 && m[0].Batches > 0
	})
	for id := range uint64(20) { // the new leader's orders pass in the meantime
		p.ask(100 + id)
	}
	if n := p.a.total() - before; n != 20 {
		t.Errorf("%d answers to 20 requests: the old leader's order was obeyed", n)
	}

	p.s[0].s.StandBy(2)
	p.view(0, "the old leader stands by, with its backend", func(v View) bool { return v.Epoch == 2 && v.Alive == 1 })
	p.s[0].s.Lead(3)
	p.c.until(t, "the frontend follows epoch 3", func() bool { return p.c.ups == 3 })
	p.ask(3)
}

// cutter passes bytes between peers and a scheduler until it is told to block one direction.
type cutter struct {
	ln net.Listener
	to string

	mu    sync.Mutex
	conns []net.Conn
	up    bool // bytes to the scheduler are held back
	down  bool // bytes from the scheduler are
}

func openCutter(t *testing.T, to string) *cutter {
	t.Helper()
	ln, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, to: to}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			wait.Go(func() { c.pass(in, out, &c.up) })
			wait.Go(func() { c.pass(out, in, &c.down) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		c.mu.Lock()
		for _, conn := range c.conns {
			conn.Close()
		}
		c.mu.Unlock()
		wait.Wait()
	})
	return c
}

func (c *cutter) pass(from, to net.Conn, held *bool) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		c.mu.Lock()
		drop := *held
		c.mu.Unlock()
		if !drop { // an unreachable network: bytes arrive nowhere, and nobody is told
			to.Write(b[:n])
		}
	}
}

func (c *cutter) cut(up, down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up, c.down = up, down
}

// TestSilentLeaderIsLost shows that a leader whose network fails, in one direction or both, is lost to its peers
// although no connection is closed, and that its successor serves.
func TestSilentLeaderIsLost(t *testing.T) {
	for name, cut := range map[string]struct{ up, down bool }{"both ways": {true, true}, "to the leader": {true, false}, "from the leader": {false, true}} {
		t.Run(name, func(t *testing.T) {
			var dark *cutter
			p := openPair(t, 4*quietTicks, func(i int, addr string) string {
				if i == 1 {
					return addr
				}
				dark = openCutter(t, addr)
				return dark.ln.Addr().String()
			})
			p.ask(1)
			dark.cut(cut.up, cut.down)
			p.view(1, "the standby hears that the leader is lost", func(v View) bool { return v.Lost == 1 })
			p.s[1].s.Lead(2)
			p.c.until(t, "the frontend follows the new leader", func() bool { return p.c.ups >= 2 && p.c.models["m"].Ready })
			p.ask(2)

			// The network works again: the old leader is told, and orders nothing.
			dark.cut(false, false)
			p.view(0, "the old leader hears of the new epoch", func(v View) bool { return v.Epoch == 2 })
			p.ask(3)
		})
	}
}

// TestEarlierPeersNeedTheLeader shows that a frontend of the previous version is served by a leader, and that a
// standby tells it to come again.
func TestEarlierPeersNeedTheLeader(t *testing.T) {
	h := open(t, ServerOptions{Standby: true})
	hello, err := wire.AppendFrontendHello(nil, &wire.FrontendHello{Version: wire.Version, Name: "old"})
	if err != nil {
		t.Fatal(err)
	}
	wire.SetHelloVersion(hello, wire.VersionMin)
	ask := func() (wire.Frame, net.Conn) {
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		conn.Write(hello)
		f, err := wire.NewReader(conn).Next()
		if err != nil {
			t.Fatal(err)
		}
		return f, conn
	}

	f, _ := ask()
	if m, err := wire.DecodeRefusal(f); err != nil || m.Fatal || f.Version != wire.VersionMin || !strings.Contains(m.Text, "stands by") {
		t.Errorf("a standby: %+v (version %d), %v", m, f.Version, err)
	}
	h.s.Lead(1)
	f, _ = ask()
	if m, err := wire.DecodeWelcome(f); err != nil || m.Version != wire.VersionMin || f.Version != wire.VersionMin {
		t.Errorf("a leader: %+v (version %d), %v", m, f.Version, err)
	}
}

// TestStandbyLearns shows that the leader's measurements reach the standbys once a second, and that a scheduler that
// does not lead sends none.
func TestStandbyLearns(t *testing.T) {
	p := openPair(t, calm, nil)
	next := uint64(0)
	type told struct {
		leads bool
		gpus  uint32
	}
	var mu sync.Mutex
	var rates []wire.Learned
	var lead told
	var plan *engine.PlanRecord
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- DialStandby(contextUntil(stop), DialOptions{Addr: p.addr, quiet: calm}, "s", Lessons{
			Learned: func(all []wire.Learned) { mu.Lock(); rates = all; mu.Unlock() },
			Lead: func(l wire.Lead) {
				if l.Leads {
					mu.Lock()
					lead = told{l.Leads, l.GPUs}
					mu.Unlock()
				}
			},
			Plan: func(r *engine.PlanRecord) { mu.Lock(); plan = r; mu.Unlock() },
		})
	}()
	waitFor(t, "the rate is told", func() bool {
		// A rate fades within seconds, so the model gets requests until the rate has been sent.
		next++
		p.ask(next)
		mu.Lock()
		defer mu.Unlock()
		return len(rates) == 1 && rates[0].Model == "m" && rates[0].Rate > 0 && lead == told{true, 1}
	})

	// A plan is shared as soon as it has begun.
	if _, err := p.s[0].e.ApplyPlan(engine.Plan{Number: 5}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the plan is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return plan != nil && plan.Number == 5 && plan.State == engine.PlanApplied
	})
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}

	p.s[1].e.Learn(rates)
	if got := p.s[1].e.Learned(); len(got) != 1 || got[0].Rate != rates[0].Rate {
		t.Errorf("the standby has learned %+v, want %+v", got, rates)
	}
	for i := range p.log {
		if text := p.log[i].String(); strings.Contains(text, "malformed") {
			t.Errorf("scheduler %d: %s", i, text)
		}
	}
}

// contextUntil ends when stop is closed.
func contextUntil(stop <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-stop; cancel() }()
	return ctx
}

// TestANumberOutlivesNoHello: once numbers may name other models, a standby whose session began with an earlier hello gets a
// new one, and the leader keeps its own. A hello that is only renewed leaves both.
func TestANumberOutlivesNoHello(t *testing.T) {
	p := openPair(t, calm, nil)
	knows := func(i int, name string) bool {
		for _, m := range p.s[i].e.Models() {
			if m.Name == name {
				return true
			}
		}
		return false
	}
	if err := p.r.link.Renew(backendHello("m", "renewed")); err != nil {
		t.Fatal(err)
	}
	if err := p.r.link.Renumber(backendHello("m", "renumbered")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the standby gets the last hello", func() bool { return knows(1, "renumbered") })
	if knows(1, "renewed") || knows(0, "renumbered") || p.c.downs != 0 {
		t.Errorf("the standby knows the renewed hello: %v, the leader the last one: %v, %d sessions lost", knows(1, "renewed"), knows(0, "renumbered"), p.c.downs)
	}
	p.ask(1)

	p.s[1].s.Lead(2)
	p.c.until(t, "the frontend follows the new leader", func() bool { return p.c.ups == 2 })
	p.ask(2)

	// The former leader has heard nothing since: it is not obeyed in its old session either.
	if err := p.r.link.Renumber(backendHello("m", "again")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the former leader gets the last hello", func() bool { return knows(0, "again") })
}

// TestOutdatedSessionsAreNotObeyed: until its session has ended, a leader is not obeyed in it.
func TestOutdatedSessionsAreNotObeyed(t *testing.T) {
	r := newRunner(func(wire.Item) {})
	l := &backendLink{BackendEvents: r, named: map[*member]map[peerName]wire.Peer{}}
	g, err := newGroup(DialOptions{Addr: "a,b", Logger: slog.New(slog.DiscardHandler)}, nil, l)
	if err != nil {
		t.Fatal(err)
	}
	l.group = g
	for _, m := range g.members {
		m.version = wire.Version
		g.noteOpened(m)
	}
	g.noteLead(g.members[0], wire.Lead{Epoch: 1, Leads: true})
	if err := l.Renumber(backendHello("m")); err != nil || g.active.Load() != g.members[0] {
		t.Fatalf("the leader is not obeyed any more (%v)", err)
	}
	g.noteLead(g.members[1], wire.Lead{Epoch: 2, Leads: true})
	if g.active.Load() != nil {
		t.Error("a scheduler is obeyed that knows only the first hello")
	}
	g.members[1].hello = 1
	g.noteOpened(g.members[1])
	g.noteLead(g.members[1], wire.Lead{Epoch: 2, Leads: true})
	if g.active.Load() != g.members[1] {
		t.Error("the leader is not obeyed in its new session")
	}
}
