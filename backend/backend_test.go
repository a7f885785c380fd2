package backend

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/cuda"
	"downbeat.dev/internal/logtest"
	"downbeat.dev/rdma"
)

func TestEveryBatchSize(t *testing.T) {
	for _, provider := range []string{"local", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			r := newRig(t, rigOptions{gpus: 2, alpha: 10 * time.Microsecond, batchMax: 12, front: rdma.Config{Providers: []string{provider}}})
			for n := 1; n <= 12; n++ {
				e, inputs := r.batch(uint64(n), n)
				e.GPU = uint32(n % 2)
				r.Execute([]wire.Execute{e})
				for id, in := range inputs {
					r.checkOutput(id, in)
				}
				if d := r.checkFailures(uint64(n)); d.GPU != e.GPU || d.Exec < int64(r.model.Profile.Exec(n)) || d.Fetch <= 0 || d.FreeIn != 0 {
					t.Errorf("done %+v", d)
				}
			}
		})
	}
}

// TestChainsAreSplit sends more rows than one chain of reads may have.
func TestChainsAreSplit(t *testing.T) {
	n := rdma.ChainMax + 7 // two tensors each
	r := newRig(t, rigOptions{alpha: time.Microsecond, batchMax: n})
	e, inputs := r.batch(1, n)
	e.Items[n-1].Input.Key++
	r.Execute([]wire.Execute{e})
	r.checkFailures(1, wire.ItemFailure{Index: uint32(n - 1), Reason: model.InputUnavailable})
	for i, it := range e.Items[:n-1] {
		if i%100 == 0 || i > n-10 {
			r.checkOutput(it.ID, inputs[it.ID])
		}
	}
}

// TestRowsFailAlone is invariant B2, for each way in which a row cannot be fetched.
func TestRowsFailAlone(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 10 * time.Microsecond, batchMax: 8})
	r.Peers([]wire.Peer{{Frontend: 3, DataAddr: "nowhere"}})
	e, inputs := r.batch(1, 8)
	e.Items[0].Input.Key++             // never offered
	e.Items[2].Input.Length--          // not this model's input
	e.Items[3].Frontend = 2            // never announced
	e.Items[5].Input.Offset += 1 << 25 // beyond the buffer
	e.Items[7].Frontend = 3            // cannot be reached
	r.Execute([]wire.Execute{e})
	u := model.InputUnavailable
	r.checkFailures(1, wire.ItemFailure{Index: 0, Reason: u}, wire.ItemFailure{Index: 2, Reason: u}, wire.ItemFailure{Index: 3, Reason: u, Untold: true},
		wire.ItemFailure{Index: 5, Reason: u}, wire.ItemFailure{Index: 7, Reason: u, Untold: true})
	for i, it := range e.Items {
		switch i {
		case 0, 2, 5:
			r.checkReason(it.ID, model.InputUnavailable)
		case 1, 4, 6:
			r.checkOutput(it.ID, inputs[it.ID])
		}
	}
	if s := r.Stats()[0]; s.Rows != 3 || s.Failed[model.InputUnavailable] != 5 {
		t.Errorf("stats %+v", s)
	}
}

func TestNoRowCanBeFetched(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
	e, _ := r.batch(1, 2)
	e.Items[0].Input.Key++
	e.Items[1].Input.Key++
	r.Execute([]wire.Execute{e})
	r.checkReason(e.Items[0].ID, model.InputUnavailable)
	if d, _ := r.sched.wait(1); len(d.Failures) != 2 || d.Exec != 0 {
		t.Errorf("done %+v, want two failures and no execution", d)
	}
}

// TestExecutorFails shows that a batch that failed as a whole is left to the scheduler, which gives it to another
// GPU.
func TestExecutorFails(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 4})
	r.emus[0].Inject(emu.Failing)
	e, _ := r.batch(1, 3)
	r.Execute([]wire.Execute{e})
	r.checkUntold(e, model.ExecutionFailed)
	r.emus[0].Inject(emu.Fault{})
	e, inputs := r.batch(2, 4)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
}

// TestABackendWhoseBatchesAllFailSaysSo: such a backend is not ready, its GPU is down in the metrics, and the log has
// few lines about it, until a batch succeeds.
func TestABackendWhoseBatchesAllFailSaysSo(t *testing.T) {
	var lines logtest.Buffer
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1, log: slog.New(slog.NewTextHandler(&lines, nil))})
	r.emus[0].Inject(emu.Failing)
	for batch := range uint64(3 * failingMin) {
		e, _ := r.batch(batch, 1)
		r.Execute([]wire.Execute{e})
		r.checkUntold(e, model.ExecutionFailed)
	}
	r.drain()
	r.draining.Store(false)
	if r.Ready() || !r.Stats()[0].Failing {
		t.Errorf("ready %v, %+v", r.Ready(), r.Stats()[0])
	}
	if n := strings.Count(lines.String(), "batches fail"); n < 1 || n > 3 {
		t.Errorf("%d lines say that batches fail:\n%s", n, lines.String())
	}

	r.emus[0].Inject(emu.Fault{})
	e, inputs := r.batch(1000, 1)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	if !r.Ready() || r.Stats()[0].Failing {
		t.Errorf("after a batch that did not fail: ready %v, %+v", r.Ready(), r.Stats()[0])
	}
}

// TestStartsOnceFetched shows that a batch begins before Start if its inputs are there and the GPU is free.
func TestStartsOnceFetched(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
	e, inputs := r.batch(1, 2)
	e.Start, e.Latest = int64(time.Minute), int64(time.Minute)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	if d, _ := r.sched.wait(1); d.Wait > int64(10*time.Second) {
		t.Errorf("done %+v", d)
	}
}

func TestLateBatches(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 200 * time.Millisecond, batchMax: 4})
	e, _ := r.batch(1, 2) // ℓ(2) = 400 ms: neither can be served
	e.Latest, e.Items[0].Budget, e.Items[1].Budget = -int64(5*time.Millisecond), us(300*time.Millisecond), 0
	began := time.Now()
	r.Execute([]wire.Execute{e})
	for _, it := range e.Items {
		r.checkReason(it.ID, model.DeadlineCannotBeMet)
	}
	if _, at := r.sched.wait(1); at.Sub(began) > 5*time.Second {
		t.Errorf("a batch that nobody can use was done after %v", at.Sub(began))
	}
	e, inputs := r.batch(2, 2) // late for one request, not for the other
	e.Latest, e.Items[0].Budget = -int64(5*time.Millisecond), us(300*time.Millisecond)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
}

func TestBadExecutes(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
	gpu, _ := r.batch(1, 1)
	gpu.GPU = 7
	unknown, _ := r.batch(2, 1)
	unknown.Model = 7
	large, _ := r.batch(3, 3)
	empty, _ := r.batch(4, 0)
	r.Execute([]wire.Execute{gpu, unknown, large, empty})
	f := wire.ItemFailure{Reason: model.ExecutionFailed}
	r.checkFailures(1, f)
	r.checkFailures(2, f)
	r.checkFailures(4)
	if d, _ := r.sched.wait(3); len(d.Failures) != 3 {
		t.Errorf("done %+v, want 3 failures", d)
	}
}

func TestTooManyBatches(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Millisecond, batchMax: 1}) // none ends before all have arrived
	const n = ordersMax + 3
	served, failed := 0, 0
	var all []wire.Execute
	inputs := map[uint64][]byte{}
	for i := range uint64(n) {
		e, in := r.batch(i, 1)
		all = append(all, e)
		for id := range in {
			inputs[id] = in[id]
		}
	}
	r.Execute(all)
	for _, e := range all {
		if d, _ := r.sched.wait(e.Batch); len(d.Failures) == 0 {
			served++
			r.checkOutput(e.Items[0].ID, inputs[e.Items[0].ID])
		} else {
			failed++
		}
	}
	if failed == 0 || served < ordersMax {
		t.Errorf("%d served, %d failed of %d; want the first %d served and the rest refused", served, failed, n, ordersMax)
	}
}

// TestFetchOverlapsExecution shows that the next batch's inputs are there before its turn.
func TestFetchOverlapsExecution(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Second, batchMax: 1})
	a, _ := r.batch(1, 1)
	b, _ := r.batch(2, 1)
	r.Execute([]wire.Execute{a, b})
	d1, _ := r.sched.wait(1)
	d2, _ := r.sched.wait(2)
	if d2.Wait < d1.Exec/2 {
		t.Errorf("the second batch waited %v after its fetch while the first ran for %v", time.Duration(d2.Wait), time.Duration(d1.Exec))
	}
}

func TestLinkLost(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 50 * time.Millisecond, batchMax: 1})
	lost := make(chan struct{})
	r.spy().wait = func(n int) {
		if n == 1 { // the first batch runs until then
			<-lost
		}
	}
	running, in := r.batch(1, 1)
	ahead, behind := r.batch(2, 1)
	queued, _ := r.batch(4, 1)
	r.Execute([]wire.Execute{running, ahead, queued})
	r.waitFlying(2)
	r.Link(false, errors.New("test"))
	close(lost)
	id := running.Items[0].ID
	r.checkOutput(id, in[id])
	id = ahead.Items[0].ID
	r.checkOutput(id, behind[id]) // the GPU already had it
	r.Link(true, nil)
	r.meetFrontend(wire.Peer{Frontend: 9, DataAddr: r.front.node.Addr()}) // numbers change with the session
	again, in := r.batch(3, 1)
	again.Items[0].Frontend = 9
	r.Execute([]wire.Execute{again})
	id = again.Items[0].ID
	r.checkOutput(id, in[id])
	r.sched.wait(3)
	r.drain()
	for _, batch := range []uint64{1, 2, 4} {
		if _, _, ok := r.sched.find(batch); ok {
			t.Errorf("batch %d of the lost session was told to the new one", batch)
		}
	}
	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	if a, ok := r.front.answers[queued.Items[0].ID]; ok {
		t.Errorf("the queued request got %+v, its scheduler gives it to others", a)
	}
}

// TestHang is invariant B4 for a GPU that does not answer.
func TestHang(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1})
	release := make(chan struct{})
	r.emus[0].Inject(emu.Fault{Op: "launch", Device: cuda.Fault{Hang: true, Until: release}})
	a, _ := r.batch(1, 1)
	b, _ := r.batch(2, 1)
	d, _ := r.batch(5, 1)
	r.Execute([]wire.Execute{a, b, d})
	r.waitFlying(2)
	for i, e := range []wire.Execute{a, b, d} {
		r.checkGivenBack(e.Batch, e, []model.Reason{model.BackendLost, model.BackendLost, model.NoBackend}[i])
	}
	if !r.Stats()[0].Hung {
		t.Error("stats do not tell that the GPU hangs")
	}
	c, _ := r.batch(3, 1)
	r.Execute([]wire.Execute{c})
	r.checkGivenBack(3, c, model.NoBackend)
	r.emus[0].Inject(emu.Fault{})
	close(release)
	for end := time.Now().Add(patience); r.Stats()[0].Hung && time.Now().Before(end); {
		runtime.Gosched()
	}
	e, inputs := r.batch(4, 1)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	if r.front.twice != 0 {
		t.Errorf("%d requests were answered twice", r.front.twice)
	}
}

func TestGPULost(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: time.Millisecond, batchMax: 1})
	r.emus[0].Inject(emu.Lost)
	for i := range uint64(3) {
		e, _ := r.batch(i, 1)
		r.Execute([]wire.Execute{e})
		r.checkGivenBack(i, e, []model.Reason{model.BackendLost, model.NoBackend, model.NoBackend}[i])
	}
	e, inputs := r.batch(9, 1)
	e.GPU = 1
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	if !r.Ready() {
		t.Error("not ready, with one GPU left")
	}
	r.Link(false, control.ErrUnavailable)
	if r.Ready() {
		t.Error("ready without a scheduler")
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 20 * time.Millisecond, batchMax: 1})
	a, ina := r.batch(1, 1)
	b, inb := r.batch(2, 1)
	if !r.Ready() {
		t.Error("connected, with a GPU that answers: not ready")
	}
	r.Execute([]wire.Execute{a, b})
	r.drain()
	if r.Ready() {
		t.Error("drained, and still ready")
	}
	for batch := range uint64(2) {
		if d, _, ok := r.sched.find(batch + 1); !ok || d.FreeIn < int64(time.Second) {
			t.Errorf("batch %d: done %v %+v, want it finished and no more sent", batch+1, ok, d)
		}
	}
	r.checkOutput(a.Items[0].ID, ina[a.Items[0].ID])
	r.checkOutput(b.Items[0].ID, inb[b.Items[0].ID])
}

func TestNewRefuses(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
	unmeasured := *r.model
	unmeasured.Profile = nil
	e := mustEmu(t)
	for want, c := range map[string]Config{
		"no GPUs":        {Models: []*device.Model{r.model}},
		"no model":       {Node: r.node, GPUs: []GPU{{Executors: []device.Executor{e}}}},
		"has no profile": {Node: r.node, Models: []*device.Model{&unmeasured}, GPUs: []GPU{{Executors: []device.Executor{mustEmu(t)}}}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// TestAModelThatIsTooSlowIsLeftOut: with it, the scheduler would refuse the backend and all its models.
func TestAModelThatIsTooSlowIsLeftOut(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 2 * time.Millisecond, batchMax: 1})
	slow, source := *r.model, *r.model.Source
	source.SLO = time.Millisecond
	slow.Source, slow.Name = &source, "slow"
	var log bytes.Buffer
	b, err := New(Config{Node: r.node, Models: []*device.Model{&slow, r.model}, GPUs: []GPU{{Executors: []device.Executor{mustEmu(t)}, Core: -1}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if h := b.Hello(); len(h.Models) != 1 || h.Models[0].Info.Name != "m" || !strings.Contains(log.String(), "SLO 1ms is shorter than ℓ(1) = 2ms") {
		t.Errorf("%d models; log %s", len(h.Models), log.String())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestHotPathAllocatesNothing is invariant B5, from Execute to Done.
func TestHotPathAllocatesNothing(t *testing.T) {
	link := &counter{more: make(chan struct{}, 1)}
	r := newRig(t, rigOptions{alpha: time.Microsecond, batchMax: 16, link: link})
	e, _ := r.batch(1, 16)
	quiet, err := rdma.Open(rdma.Config{}) // a frontend that discards answers, because collecting allocates
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	r.meetFrontend(wire.Peer{Frontend: 1, DataAddr: quiet.Addr()})
	for i := range e.Items {
		b, err := quiet.Alloc(r.model.InBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Free()
		o := b.Offer()
		e.Items[i].Input = model.Descriptor{Key: o.Key, Offset: uint32(o.Offset), Length: o.Length}
	}
	batches := []wire.Execute{e, e, e} // two at the GPU, one after them
	run := func() {
		r.Execute(batches)
		for range batches {
			<-link.more
		}
	}
	for range 50 {
		run()
	}
	if n := link.failures.Load(); n != 0 {
		t.Fatalf("%d requests failed in warm-up", n)
	}
	if n := testing.AllocsPerRun(200, run); n != 0 && !raceEnabled {
		t.Errorf("%v allocations for three batches, want 0", n)
	}
}

type counter struct {
	more     chan struct{}
	failures atomic.Int64
}

func (c *counter) Done(d []wire.Done) error {
	c.failures.Add(int64(len(d[0].Failures)))
	c.more <- struct{}{}
	return nil
}

func (c *counter) Offer([]wire.Loadable) error         { return nil }
func (c *counter) Report([]wire.PlacementReport) error { return nil }
func (c *counter) Answer(wire.ModelAnswer) error       { return nil }
func (c *counter) Unserved(wire.Unserved) error        { return nil }
func (c *counter) OfferSpare([]wire.SpareOffer) error  { return nil }
func (c *counter) EndSpare([]wire.SpareEnd) error      { return nil }
func (c *counter) Renew(wire.BackendHello) error       { return nil }
func (c *counter) Renumber(wire.BackendHello) error    { return nil }
func (c *counter) Close() error                        { return nil }
