package backend

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for events that must happen.
const patience = 30 * time.Second

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

// answer is a result message as a frontend received it.
type answer struct {
	wire.ResultHeader
	output []byte
}

// stub is a frontend's data plane: it offers inputs and collects answers.
type stub struct {
	t       testing.TB
	node    *rdma.Node
	mu      sync.Mutex
	answers map[uint64]answer // guarded by mu
	twice   int               // answers to a request that already had one; guarded by mu
	came    chan struct{}     // a token after each answer
}

func newStub(t testing.TB, c rdma.Config) *stub {
	t.Helper()
	s := &stub{t: t, answers: map[uint64]answer{}, came: make(chan struct{}, 1)}
	c.Receive = s.receive
	node, err := rdma.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	s.node = node
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Errorf("close frontend's node: %v", err)
		}
	})
	return s
}

func (s *stub) receive(_ *rdma.Peer, msg []byte) {
	h, out, err := wire.DecodeResult(msg)
	if err != nil {
		s.t.Errorf("result: %v", err)
		return
	}
	s.mu.Lock()
	if _, ok := s.answers[h.ID]; ok {
		s.twice++
	}
	s.answers[h.ID] = answer{h, bytes.Clone(out)}
	s.mu.Unlock()
	select {
	case s.came <- struct{}{}:
	default:
	}
}

// wait returns the answer to a request.
func (s *stub) wait(id uint64) answer {
	s.t.Helper()
	end := time.After(patience)
	for {
		s.mu.Lock()
		a, ok := s.answers[id]
		s.mu.Unlock()
		if ok {
			return a
		}
		select {
		case <-s.came:
		case <-time.After(time.Millisecond):
		case <-end:
			s.t.Fatalf("no answer to request %d", id)
		}
	}
}

// offer makes an input readable for the backend. It is freed when the test ends.
func (s *stub) offer(input []byte) model.Descriptor {
	s.t.Helper()
	b, err := s.node.Alloc(len(input))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(b.Free)
	copy(b.Bytes(), input)
	r := b.Offer()
	return model.Descriptor{Key: r.Key, Offset: uint32(r.Offset), Length: r.Length}
}

// schedule is the scheduler's end of the link. It keeps every Done.
type schedule struct {
	mu       sync.Mutex
	dones    map[uint64]wire.Done   // guarded by mu
	at       map[uint64]time.Time   // guarded by mu
	offers   []wire.Loadable        // guarded by mu
	reports  []wire.PlacementReport // guarded by mu
	answers  []wire.ModelAnswer     // guarded by mu
	unserved []model.Info           // guarded by mu
	spare    []wire.SpareOffer      // guarded by mu
	ends     []wire.SpareEnd        // guarded by mu
	t        testing.TB

	renumbered atomic.Int64
}

func (s *schedule) Done(d []wire.Done) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range d {
		if _, ok := s.dones[x.Batch]; ok {
			s.t.Errorf("batch %d is done twice", x.Batch)
		}
		x.Failures = append([]wire.ItemFailure(nil), x.Failures...)
		s.dones[x.Batch], s.at[x.Batch] = x, time.Now()
	}
	return nil
}

func (s *schedule) Offer(m []wire.Loadable) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers = append(s.offers, m...)
	return nil
}

func (s *schedule) Answer(a wire.ModelAnswer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
	return nil
}

func (s *schedule) OfferSpare(m []wire.SpareOffer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, m...)
	return nil
}

func (s *schedule) EndSpare(m []wire.SpareEnd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, m...)
	return nil
}

// spareState returns the backend's messages about spare work.
func (s *schedule) spareState() ([]wire.SpareOffer, []wire.SpareEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spare), slices.Clone(s.ends)
}

// takeSpareEnds returns how many steps of spare work have ended since the last call.
func (s *schedule) takeSpareEnds() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.ends)
	s.ends = s.ends[:0]
	return uint64(n)
}

func (s *schedule) Unserved(u wire.Unserved) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unserved = u.Models
	return nil
}

func (s *schedule) Renew(wire.BackendHello) error { return nil }

func (s *schedule) Renumber(wire.BackendHello) error {
	s.renumbered.Add(1)
	return nil
}

func (s *schedule) Report(m []wire.PlacementReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, m...)
	return nil
}

func (s *schedule) Close() error { return nil }

func (s *schedule) find(batch uint64) (wire.Done, time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.dones[batch]
	return d, s.at[batch], ok
}

func (s *schedule) wait(batch uint64) (wire.Done, time.Time) {
	s.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
		if d, at, ok := s.find(batch); ok {
			return d, at
		}
	}
	s.t.Fatalf("batch %d is not done", batch)
	return wire.Done{}, time.Time{}
}

// rig is a backend with emulated GPUs, its scheduler and one frontend, number 1.
type rig struct {
	events
	t     testing.TB
	emus  []*emu.Executor
	sched *schedule
	front *stub
	model *device.Model
	ids   uint64
}

type rigOptions struct {
	gpus        int
	alpha, beta time.Duration
	batchMax    int
	pixels      int64 // of an input; 0: 40
	plain       bool  // the image is the only input
	pinned      bool  // to core 0: one batch runs at a time
	front       rdma.Config
	log         *slog.Logger
	link        control.BackendLink // nil: the rig's own schedule
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, sched: &schedule{t: t, dones: map[uint64]wire.Done{}, at: map[uint64]time.Time{}}}
	r.front = newStub(t, o.front)
	node, err := rdma.Open(rdma.Config{Providers: o.front.Providers, Stall: o.front.Stall})
	if err != nil {
		t.Fatal(err)
	}
	inputs := []model.Tensor{tensor("image", "UINT8", max(o.pixels, 40), 3), tensor("flag", "BOOL", 1)}
	if o.plain {
		inputs = inputs[:1]
	}
	r.model = devicetest.Emulated(t, "m", max(o.batchMax, 1), o.alpha, o.beta, inputs, []model.Tensor{tensor("scores", "FP32", 10), tensor("class", "INT64", 1)})
	c := Config{Name: "test", Models: []*device.Model{r.model}, Node: node, Logger: o.log}
	core := -1
	if o.pinned {
		core = 0
	}
	for i := range max(o.gpus, 1) {
		e := mustEmu(t)
		r.emus = append(r.emus, e)
		c.GPUs = append(c.GPUs, GPU{Name: "emulated " + string(rune('0'+i)), Executors: []device.Executor{e}, Core: core})
	}
	if r.Backend, err = New(c); err != nil {
		t.Fatal(err)
	}
	for i, e := range r.emus {
		if n := e.Memory().Unpinned; n != 0 {
			t.Errorf("%d slots of GPU %d are not pinned", n, i)
		}
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if n := node.Stats().BuffersLive; n != 0 {
			t.Errorf("%d buffers left", n)
		}
		if err := node.Close(); err != nil {
			t.Errorf("close node: %v", err)
		}
	})
	r.Hello()
	if o.link == nil {
		o.link = r.sched
	}
	r.attach(o.link)
	r.Link(true, nil)
	r.meetFrontend(wire.Peer{Frontend: 1, DataAddr: r.front.node.Addr()})
	return r
}

// meetFrontend announces a frontend and waits for its connection. Requests to a frontend that is still being
// connected after a while are left to others, and on a busy host that while may be over before the first batch.
func (r *rig) meetFrontend(p wire.Peer) {
	r.t.Helper()
	r.Peers([]wire.Peer{p})
	if !until(func() bool { return r.peers.byID[p.Frontend].conn.Load() != nil }) {
		r.t.Fatalf("frontend %d is never connected", p.Frontend)
	}
}

// input returns a random input payload.
func (r *rig) input() []byte {
	p := make([]byte, r.model.InBytes)
	for i := range p {
		p[i] = byte(rand.Uint32())
	}
	p[len(p)-1] &= 1
	return p
}

// batch returns an Execute of n valid requests with times longer than any pause of a host, and their inputs by
// request id.
func (r *rig) batch(id uint64, n int) (wire.Execute, map[uint64][]byte) {
	e := wire.Execute{Batch: id, Latest: int64(20 * time.Second)}
	inputs := map[uint64][]byte{}
	for range n {
		r.ids++
		in := r.input()
		inputs[r.ids] = in
		e.Items = append(e.Items, wire.Item{Frontend: 1, ID: r.ids, Budget: us(20 * time.Second), Input: r.front.offer(in)})
	}
	return e, inputs
}

// checkOutput checks that a request got the right output.
func (r *rig) checkOutput(id uint64, input []byte) {
	r.t.Helper()
	a := r.front.wait(id)
	if a.Reason != 0 {
		r.t.Fatalf("request %d: reason %v, want an output", id, a.Reason)
	}
	if want := emu.Pattern(r.model, input); !bytes.Equal(a.output, want) {
		r.t.Fatalf("request %d: output % x, want % x", id, a.output[:16], want[:16])
	}
	if a.Exec <= 0 {
		r.t.Errorf("request %d: execution time %d ns", id, a.Exec)
	}
}

// checkReason checks that a request ended without an output, with this reason.
func (r *rig) checkReason(id uint64, want model.Reason) {
	r.t.Helper()
	if a := r.front.wait(id); a.Reason != want || len(a.output) != 0 {
		r.t.Fatalf("request %d: reason %v with %d bytes, want %v", id, a.Reason, len(a.output), want)
	}
}

// checkFailures checks that Done names exactly these failures.
func (r *rig) checkFailures(batch uint64, want ...wire.ItemFailure) wire.Done {
	r.t.Helper()
	d, _ := r.sched.wait(batch)
	if len(d.Failures) != len(want) {
		r.t.Fatalf("batch %d: failures %v, want %v", batch, d.Failures, want)
	}
	for i := range want {
		if d.Failures[i] != want[i] {
			r.t.Fatalf("batch %d: failures %v, want %v", batch, d.Failures, want)
		}
	}
	return d
}

// checkUntold checks that a batch's requests are left to the scheduler: Done names each, and no frontend is told.
func (r *rig) checkUntold(e wire.Execute, why model.Reason) {
	r.t.Helper()
	var want []wire.ItemFailure
	for i := range e.Items {
		want = append(want, wire.ItemFailure{Index: uint32(i), Reason: why, Untold: true})
	}
	r.checkFailures(e.Batch, want...)

	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	for _, it := range e.Items {
		if a, told := r.front.answers[it.ID]; told {
			r.t.Errorf("request %d: its frontend was told %v", it.ID, a.Reason)
		}
	}
}

// checkGivenBack checks that a batch is left to others: Done says so, its frontend is not told, and the scheduler is
// kept away from the GPU.
func (r *rig) checkGivenBack(batch uint64, e wire.Execute, why model.Reason) {
	r.t.Helper()
	d := r.checkFailures(batch, wire.ItemFailure{Reason: why})
	if d.FreeIn <= 0 {
		r.t.Errorf("done %+v, want the scheduler to be kept away", d)
	}
	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	if a, told := r.front.answers[e.Items[0].ID]; told {
		r.t.Errorf("request %d was told %v, its scheduler gives it to others", e.Items[0].ID, a.Reason)
	}
}

func (r *rig) drain() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Drain(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// waitFlying returns when GPU 0's executor has n batches.
func (r *rig) waitFlying(n int) {
	r.t.Helper()
	g := r.gpus[0]
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		g.mu.Lock()
		flying := len(g.flying)
		g.mu.Unlock()
		if flying == n {
			return
		}
	}
	r.t.Fatalf("the executor never had %d batches", n)
}

func mustEmu(t testing.TB) *emu.Executor {
	t.Helper()
	e, err := emu.New()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// us converts a budget to the unit of wire.Item.
func us(d time.Duration) uint32 { return uint32(d / time.Microsecond) }
