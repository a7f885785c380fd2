package control

import (
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// TestBackendDeathMidBatch shows that another backend answers a request of the lost batch if there is time for it.
func TestBackendDeathMidBatch(t *testing.T) {
	h := open(t, ServerOptions{})
	c, a := newCaller(), &answered{n: map[uint64]int{}}
	dead := newRunner(a.add)
	dead.mute = true
	b, err := DialBackend(ctx(t), DialOptions{Addr: h.addr, quiet: calm}, backendHello("m"), dead)
	if err != nil {
		t.Fatal(err)
	}
	dead.set(b)
	defer b.Close()

	// The other peers are in the process: a host that stalls for half a second would cut their sessions, and a
	// frontend's requests end with its session.
	addr, forget := ListenInProcess(h.s.Frontend, h.s.Backend)
	defer forget()
	f, err := DialFrontend(ctx(t), DialOptions{Addr: addr}, wire.FrontendHello{Name: "f", DataAddr: "addr-of-f"}, c)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	c.until(t, "model ready", func() bool { return c.models["m"].Ready })
	id := c.models["m"].ID
	f.Submit([]wire.Submit{{ID: 1, Model: id, Budget: 20e9}, {ID: 2, Model: id, Budget: 60e6}})
	dead.until(t, "the batch sent", func() bool { return dead.took > 0 })
	time.Sleep(80 * time.Millisecond) // the deadline of request 2 can no longer be met
	alive := newRunner(a.add)
	hello := backendHello("m")
	hello.Name = "alive"
	l, err := h.s.Backend(hello, alive)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	alive.set(l)
	b.Close()
	waitFor(t, "request 1 answered by the other backend", func() bool { return a.total() == 1 })
	c.until(t, "request 2 ended", func() bool { return len(c.outcomes) == 1 })
	if why := snapshot(c)[2]; why != model.BackendLost && why != model.DeadlineCannotBeMet {
		t.Errorf("request 2: %v", why)
	}
}
