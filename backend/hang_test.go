package backend_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// stuck is an executor whose batches do not end during some time.
type stuck struct {
	device.Executor
	hangs atomic.Bool
	freed chan struct{}
}

func (s *stuck) Wait(b device.Batch) error {
	if s.hangs.Load() {
		<-s.freed
	}
	return s.Executor.Wait(b)
}

// linkCount counts the sessions that a backend loses.
type linkCount struct {
	control.BackendEvents
	lost atomic.Int64
}

func (l *linkCount) Link(up bool, err error) {
	if !up {
		l.lost.Add(1)
	}
	l.BackendEvents.Link(up, err)
}

// pair is a backend of two GPUs whose batches take 150 ms, with its scheduler and a client. The first GPU can be made
// to hang.
type pair struct {
	*backend.Backend
	t      *testing.T
	sick   *stuck
	model  *device.Model
	events *linkCount
	client *frontend.Client
}

func newPair(t *testing.T) *pair {
	t.Helper()
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	t.Cleanup(func() { s.stop(t) })
	m := emulatedModel(t, dir)
	source := *m.Source
	source.SLO = 5 * time.Second
	m.Source = &source
	p := &pair{t: t, sick: &stuck{freed: make(chan struct{})}, model: m}
	config := backend.Config{Name: "two", Models: []*device.Model{m}}

	var err error
	must := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	m.Profile, err = profile.Linear(time.Millisecond, 150*time.Millisecond, m.BatchMax)
	must(err)
	for i, name := range []string{"sick", "well"} {
		e, err := emu.New()
		must(err)
		g := backend.GPU{Name: name, Executors: []device.Executor{e}, Core: -1}
		if i == 0 {
			p.sick.Executor = e
			g.Executors[0] = p.sick
		}
		config.GPUs = append(config.GPUs, g)
	}
	config.Node, err = rdma.Open(rdma.Config{Token: token})
	must(err)
	t.Cleanup(func() { config.Node.Close() })
	p.Backend, err = backend.New(config)
	must(err)
	p.events = &linkCount{}
	link, err := p.OpenWith(func(h wire.BackendHello, ev control.BackendEvents) (control.BackendLink, error) {
		return control.DialBackend(t.Context(), control.DialOptions{Addr: s.addr, Token: token}, h, ev)
	}, func(ev control.BackendEvents) control.BackendEvents {
		p.events.BackendEvents = ev
		return p.events
	})
	must(err)
	p.client = dial(t, s.addr, "emulated")
	t.Cleanup(func() {
		p.client.Close()
		if err := errors.Join(link.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// ran returns the number of batches that a GPU has run.
func (p *pair) ran(gpu int) uint64 { return p.Stats()[gpu].Batches }

// askAll lets four callers send one request after another until stop is called. Each must be answered.
func (p *pair) askAll() (stop func()) {
	var over atomic.Bool
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for i := 0; !over.Load(); i++ {
				if err := askFor(p.client, p.model, caller*1_000_000+i, 20*time.Second); err != nil {
					p.t.Errorf("request %d.%d: %v", caller, i, err)
					return
				}
			}
		}()
	}
	return func() {
		over.Store(true)
		callers.Wait()
	}
}

// TestAHangingGPUCostsItsNeighbourNothing hangs one of a backend's two GPUs for 10 s, which is longer than any limit.
// The other GPU serves every request meanwhile, over the link that they share, and the first one returns.
func TestAHangingGPUCostsItsNeighbourNothing(t *testing.T) {
	t.Parallel() // it mostly waits

	// A host that is short of processors sometimes loses a link. A link that is lost because of the GPU is lost each
	// time.
	lost := int64(0)
	for range 3 {
		t.Run("", func(t *testing.T) { lost = hangOneGPU(t) })
		if lost == 0 || t.Failed() {
			return
		}
		t.Logf("the link was lost %d times", lost)
	}
	t.Errorf("the link was lost each time, at last %d times", lost)
}

// hangOneGPU returns how often the link was lost.
func hangOneGPU(t *testing.T) int64 {
	t.Helper()
	p := newPair(t)
	stop := p.askAll()
	await(t, "both GPUs to serve", func() bool { return p.ran(0) > 0 && p.ran(1) > 0 })
	p.sick.hangs.Store(true)
	await(t, "the GPU to be given up", func() bool { return p.Stats()[0].Hung })
	for range 9 { // in addition to the seconds that this took
		before := p.ran(1)
		time.Sleep(time.Second)
		await(t, "the other GPU to serve", func() bool { return p.ran(1) > before })
	}

	p.sick.hangs.Store(false)
	close(p.sick.freed)
	before := p.ran(0)
	await(t, "the GPU to serve again", func() bool { return p.ran(0) > before && !p.Stats()[0].Hung })
	stop()
	return p.events.lost.Load()
}

// await waits for a condition that must come true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}
