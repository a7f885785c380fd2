package backend

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// overProvider returns data planes with only one provider. Over verbs they need an address of a device.
func overProvider(t *testing.T, provider string) rdma.Config {
	c := rdma.Config{Providers: []string{provider}}
	if provider == "verbs" {
		addr := os.Getenv("DOWNBEAT_RDMA_ADDR")
		if addr == "" {
			t.Skip("DOWNBEAT_RDMA_ADDR names no address of an RDMA device: make test-rdma runs this in a virtual machine")
		}
		c.Listen, c.Token = addr+":0", "0123456789abcdef"
	}
	return c
}

// cluster is a scheduler, backends of one emulated GPU each, and a frontend that speaks the protocol itself.
type cluster struct {
	t      *testing.T
	server *control.Server
	data   rdma.Config
	front  *stub
	link   control.FrontendLink

	mu       sync.Mutex
	ids      map[string]uint32       // ready models; guarded by mu
	outcomes map[uint64]model.Reason // by request; guarded by mu
}

func newCluster(t *testing.T, data rdma.Config) *cluster {
	e, err := engine.New(engine.Options{Prompt: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, server: control.NewServer(e, control.ServerOptions{}), data: data, front: newStub(t, data), ids: map[string]uint32{}, outcomes: map[uint64]model.Reason{}}
	t.Cleanup(func() { c.server.Close(); e.Close() })

	if c.link, err = c.server.Frontend(wire.FrontendHello{DataAddr: c.front.node.Addr()}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// Models, Outcomes, Answers and Link implement the events of a frontend.
func (c *cluster) Models(all []model.Info) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range all {
		if m.Ready {
			c.ids[m.Name] = m.ID
		}
	}
}

func (c *cluster) Outcomes(all []wire.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range all {
		c.outcomes[o.ID] = o.Reason
	}
}

func (c *cluster) Answers([]wire.ModelAnswer) {}
func (c *cluster) Link(bool, error)           {}

// joined is a backend of a cluster.
type joined struct {
	*Backend
	model *device.Model
	leave func()
}

// join starts a backend that serves one model. It leaves at the end of the test, or earlier.
func (c *cluster) join(name string) joined {
	c.t.Helper()
	node, err := rdma.Open(c.data)
	if err != nil {
		c.t.Fatal(err)
	}
	m := devicetest.Emulated(c.t, name, 4, time.Millisecond, 0, []model.Tensor{tensor("x", "UINT8", 8192)}, []model.Tensor{tensor("y", "UINT8", 64)})
	b, err := New(Config{Name: name, Models: []*device.Model{m}, Node: node, GPUs: []GPU{{Name: "gpu", Executors: []device.Executor{mustEmu(c.t)}, Core: -1}}})
	if err != nil {
		c.t.Fatal(err)
	}
	link, err := c.server.Backend(b.Hello(), events{b})
	if err != nil {
		c.t.Fatal(err)
	}
	b.attach(link)

	leave := sync.OnceFunc(func() {
		if err := errors.Join(link.Close(), b.Close(), node.Close()); err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
	c.t.Cleanup(leave)
	return joined{b, m, leave}
}

// hold makes a backend hold an input, and returns its place once the scheduler has numbered the backend.
func (c *cluster) hold(b joined, input []byte) (*HeldInput, model.Descriptor) {
	c.t.Helper()
	held, err := b.HoldInput(input)
	if err != nil {
		c.t.Fatal(err)
	}
	var at model.Descriptor
	if !until(func() bool { at, err = held.Place(); return err == nil }) {
		c.t.Fatal(err)
	}
	return held, at
}

// ask submits a request.
func (c *cluster) ask(id uint64, name string, input model.Descriptor) {
	c.t.Helper()
	var number uint32
	if !until(func() (ok bool) { c.mu.Lock(); defer c.mu.Unlock(); number, ok = c.ids[name]; return ok }) {
		c.t.Fatalf("model %s is not ready", name)
	}
	if err := c.link.Submit([]wire.Submit{{ID: id, Model: number, Budget: int64(patience), Input: input}}); err != nil {
		c.t.Fatal(err)
	}
}

// failIfTold fails the test if the scheduler, and not a backend, tells the outcome of a request.
func (c *cluster) failIfTold(id uint64) {
	c.t.Helper()
	var reason model.Reason
	until(func() bool {
		c.front.mu.Lock()
		_, answered := c.front.answers[id]
		c.front.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		reason = c.outcomes[id]
		return answered || reason != model.ReasonNone
	})
	if reason != model.ReasonNone {
		c.t.Fatalf("request %d: the scheduler says %v", id, reason)
	}
}

// checkEnd checks that a request ends with a reason, told by a backend or by the scheduler.
func (c *cluster) checkEnd(what string, id uint64, want model.Reason) {
	c.t.Helper()
	var got model.Reason
	ended := until(func() bool {
		c.front.mu.Lock()
		a, answered := c.front.answers[id]
		c.front.mu.Unlock()
		c.mu.Lock()
		reason, told := c.outcomes[id]
		c.mu.Unlock()
		got = max(a.Reason, reason)
		return answered || told
	})
	if !ended || got != want {
		c.t.Errorf("%s: ended %v with %v, want %v", what, ended, got, want)
	}
}

// TestABackendReadsWhatAnotherHolds: a request may name memory of any backend, including the one that runs it. That
// backend reads the input from there, one-sidedly, and answers the frontend that sent the request. An input that is
// no longer held, or was held by a backend that has left, ends the request with the reason.
func TestABackendReadsWhatAnotherHolds(t *testing.T) {
	for _, provider := range []string{"local", "shm", "tcp", "verbs"} {
		t.Run(provider, func(t *testing.T) {
			c := newCluster(t, overProvider(t, provider))
			holder, runner := c.join("holder"), c.join("runner")

			// Both backends run it: the holder reads its own memory.
			input := slices.Repeat([]byte{1, 2, 3, 250}, 2048)
			held, at := c.hold(holder, input)
			for i, b := range []joined{runner, holder} {
				id := uint64(i + 1)
				c.ask(id, b.model.Name, at)
				c.failIfTold(id)
				if a := c.front.wait(id); a.Reason != 0 || !bytes.Equal(a.output, emu.Pattern(b.model, input)) {
					t.Errorf("%s: reason %v, output % x", b.model.Name, a.Reason, a.output)
				}
			}
			if p := peerTo(runner, holder); p == nil || p.Provider != provider || p.Chains == 0 {
				t.Errorf("%s: the runner read nothing from the holder: %+v", provider, runner.node.Stats().Peers)
			}

			held.Free()
			c.ask(3, "runner", at)
			c.checkEnd("freed", 3, model.InputUnavailable)

			// A backend that has left is no source any more, and no other backend gets its number.
			held, at = c.hold(runner, input)
			held.Free()
			runner.leave()
			other := c.join("other")
			held, elsewhere := c.hold(other, input)
			defer held.Free()
			if elsewhere.Node() == at.Node() {
				t.Errorf("two backends were node %d", at.Node())
			}
			c.ask(4, "other", at)
			c.checkEnd("left", 4, model.InputUnavailable)
		})
	}
}

// peerTo returns one backend's counts of another backend's data plane.
func peerTo(b, of joined) *rdma.PeerStats {
	all := b.node.Stats().Peers
	i := slices.IndexFunc(all, func(p rdma.PeerStats) bool { return p.Addr == of.node.Addr() })
	if i < 0 {
		return nil
	}
	return &all[i]
}
