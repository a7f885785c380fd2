package control

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

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

// calm is the patience, in ticks, of the links in tests that are not about silence. On a host that is short of
// processors, the two ends of a link, both in this process, may keep each other waiting for longer than QuietMax.
const calm = 100

// bound is how long a test waits for events that must happen, however busy the host is.
const bound = 30 * time.Second

// rareAddr is for a port that is closed and opened again: hardly any other process of this host binds it in between.
const rareAddr = "127.0.0.2:0"

// openOn starts a scheduler that lets no request wait while a GPU is idle.
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
	o.quiet = cmp.Or(o.quiet, calm)
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

// caller records the messages to a frontend.
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
	deadline := time.After(bound)
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

// runner is a backend that reports every batch as done at once, and answers with the answer function as the data
// plane would.
type runner struct {
	caller
	link   BackendLink
	steps  int // of spare work
	linked chan struct{}
	answer func(wire.Item)
	mute   bool // takes batches and sends nothing
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
	c, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return c
}

// dialBoth opens a frontend's and a backend's session, over TCP or within the process.
func (h *house) dialBoth(local bool, o DialOptions, c *caller, r *runner, hello wire.BackendHello) (FrontendLink, BackendLink) {
	h.t.Helper()
	o.Addr, o.quiet = h.addr, calm
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

func snapshot(c *caller) map[uint64]model.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[uint64]model.Reason{}
	for k, v := range c.outcomes {
		out[k] = v
	}
	return out
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
