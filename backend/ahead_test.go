package backend

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
	"downbeat.dev/cuda"
	"downbeat.dev/rdma"
)

// spy records the calls of an executor, and can refuse or delay them.
type spy struct {
	*emu.Executor
	submit func(n int) error // called before the n-th Submit, counted from 1, unless nil
	wait   func(n int)       // called before the n-th Wait returns, unless nil

	mu        sync.Mutex
	early     map[int]int // early rows by slot; guarded by mu
	arrivals  int         // calls of Arrived; guarded by mu
	submitted int         // guarded by mu
	waited    int         // guarded by mu
}

// spy puts a spy in front of GPU 0's executor. Nothing may be running yet.
func (r *rig) spy() *spy {
	s := &spy{Executor: r.emus[0], early: map[int]int{}}
	g := r.gpus[0]
	g.executors = []device.Executor{s}
	route := *g.routeOf(0)
	route.executor, route.can = s, s.Capabilities()
	g.setRoute(0, &route)
	return s
}

func (s *spy) Capabilities() device.Capabilities {
	c := s.Executor.Capabilities()
	c.Early = s
	return c
}

func (s *spy) Arrived(m *device.Model, slot *device.Slot, k, from, to int) {
	s.Executor.Arrived(m, slot, k, from, to)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early[slot.Index] += to - from
	s.arrivals++
}

func (s *spy) Submit(b device.Batch) error {
	s.mu.Lock()
	s.submitted++
	n := s.submitted
	s.mu.Unlock()
	if s.submit != nil {
		if err := s.submit(n); err != nil {
			return err
		}
	}
	return s.Executor.Submit(b)
}

func (s *spy) Wait(b device.Batch) error {
	err := s.Executor.Wait(b)
	s.mu.Lock()
	s.waited++
	n := s.waited
	s.mu.Unlock()
	if s.wait != nil {
		s.wait(n)
	}
	return err
}

func (s *spy) rows() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.early {
		n += k
	}
	return n
}

// submits returns the number of submitted batches.
func (s *spy) submits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submitted
}

// until waits for a condition that must come true.
func until(what func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		if what() {
			return true
		}
	}
	return false
}

// TestTheNextBatchIsSubmittedWhileOneRuns holds each Wait back until the batch after the next has been submitted, if
// that is allowed. The executor has at most two batches at a time, and all answers are correct.
func TestTheNextBatchIsSubmittedWhileOneRuns(t *testing.T) {
	const n = 6
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 4, pixels: 5_000})
	s := r.spy()
	s.wait = func(k int) {
		if !until(func() bool { return s.submits() >= min(k+1, n) }) {
			t.Errorf("batch %d was not submitted while batch %d ran", k+1, k)
		}
		if now := s.submits(); now > k+1 {
			t.Errorf("%d batches were submitted before the end of batch %d", now, k)
		}
	}
	inputs := map[uint64][]byte{}
	for i := range uint64(n) {
		e, in := r.batch(i+1, 1+int(i)%4)
		for id := range in {
			inputs[id] = in[id]
		}
		r.Execute([]wire.Execute{e})
	}
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	r.drain()
	if st := r.Stats()[0]; st.Batches != n || st.Busy <= 0 {
		t.Errorf("stats %+v", st)
	}
}

// TestABatchInDoubtWaitsForTheGPU has a batch that would be too late if the previous one took as long as its profile
// allows. Whether it runs is decided when the previous one has ended.
func TestABatchInDoubtWaitsForTheGPU(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Second, batchMax: 1})
	s := r.spy()
	early := make(chan struct{})
	s.wait = func(n int) {
		if n == 1 {
			close(early)
		}
	}
	first, in := r.batch(1, 1)
	r.Execute([]wire.Execute{first})
	r.waitFlying(1)
	for range 2 {
		e, more := r.batch(r.ids+1, 1)
		e.Items[0].Budget = us(1200 * time.Millisecond) // less than twice ℓ(1)
		r.Execute([]wire.Execute{e})
		for id := range more {
			defer r.checkReason(id, model.DeadlineCannotBeMet)
		}
	}
	<-early
	if n := s.submits(); n != 1 {
		t.Errorf("%d batches were submitted before the first had ended", n)
	}
	r.checkOutput(first.Items[0].ID, in[first.Items[0].ID])
}

// TestABusyExecutorIsAskedAgain has an executor without room for a second batch beside the first.
func TestABusyExecutorIsAskedAgain(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1})
	s := r.spy()
	s.submit = func(n int) error {
		if n == 2 {
			return device.ErrBusy
		}
		return nil
	}
	a, ina := r.batch(1, 1)
	b, inb := r.batch(2, 1)
	s.wait = func(n int) {
		if n == 1 && !until(func() bool { return s.submits() == 2 }) {
			t.Error("the second batch was not offered while the first ran")
		}
	}
	r.Execute([]wire.Execute{a, b})
	r.checkOutput(a.Items[0].ID, ina[a.Items[0].ID])
	r.checkOutput(b.Items[0].ID, inb[b.Items[0].ID])
	if n := s.submits(); n != 3 {
		t.Errorf("%d submits, want a third when the first batch had ended", n)
	}
}

// TestABatchThatIsRefusedFailsAlone has the second of three batches refused while the first runs.
func TestABatchThatIsRefusedFailsAlone(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 5 * time.Millisecond, batchMax: 1})
	s := r.spy()
	s.submit = func(n int) error {
		if n == 2 {
			return errors.New("does not like it")
		}
		return nil
	}
	for i := range uint64(3) {
		e, in := r.batch(i+1, 1)
		r.Execute([]wire.Execute{e})
		if id := e.Items[0].ID; i == 1 {
			defer r.checkUntold(e, model.ExecutionFailed)
		} else {
			defer r.checkOutput(id, in[id])
		}
	}
}

// TestALostGPUGivesBackAllThatItHad is a sticky error with two batches at the GPU and one due.
func TestALostGPUGivesBackAllThatItHad(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 500 * time.Millisecond, batchMax: 1})
	var all []wire.Execute
	for i := range uint64(3) {
		e, _ := r.batch(i+1, 1)
		all = append(all, e)
	}
	r.Execute(all)
	r.waitFlying(2)
	r.emus[0].Inject(emu.Fault{Op: "copy out", Device: cuda.Fault{Code: cuda.CodeIllegalAddress}})
	for i, e := range all {
		r.checkGivenBack(e.Batch, e, []model.Reason{model.BackendLost, model.BackendLost, model.NoBackend}[i])
	}
}

// TestAPinnedExecutorRunsOneBatchAtATime shows that the next batch waits for its turn. It is returned if the GPU
// hangs, and forgotten if the link is lost, like other due batches.
func TestAPinnedExecutorRunsOneBatchAtATime(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 20 * time.Millisecond, batchMax: 2, pinned: true})
	all := map[uint64][]byte{}
	var batches []wire.Execute
	for i := range uint64(4) {
		e, in := r.batch(i+1, 1+int(i)%2)
		batches = append(batches, e)
		for id := range in {
			all[id] = in[id]
		}
	}
	r.Execute(batches)
	most := 0
	until(func() bool {
		g := r.gpus[0]
		g.mu.Lock()
		defer g.mu.Unlock()
		most = max(most, len(g.flying))
		return len(g.due) == 0 && len(g.flying) == 0
	})
	if most > 1 {
		t.Errorf("the executor had %d batches at a time", most)
	}
	for id, in := range all {
		r.checkOutput(id, in)
	}
	r.emus[0].Inject(emu.Fault{Slow: 25}) // the link is lost before the first has ended
	running, in := r.batch(5, 1)
	queued, _ := r.batch(6, 1)
	r.Execute([]wire.Execute{running, queued})
	r.waitFlying(1)
	r.Link(false, errors.New("test"))
	r.checkOutput(running.Items[0].ID, in[running.Items[0].ID])
	r.drain()
	r.Link(true, nil)
	r.meetFrontend(wire.Peer{Frontend: 1, DataAddr: r.front.node.Addr()})
	release := make(chan struct{})
	r.emus[0].Inject(emu.Fault{Op: "launch", Device: cuda.Fault{Hang: true, Until: release}})
	a, _ := r.batch(7, 1)
	b, _ := r.batch(8, 1)
	r.Execute([]wire.Execute{a, b})
	r.checkGivenBack(7, a, model.BackendLost)
	r.checkGivenBack(8, b, model.NoBackend)
	r.emus[0].Inject(emu.Fault{})
	close(release)
	if !until(func() bool { return !r.Stats()[0].Hung }) {
		t.Fatal("the GPU hangs for ever")
	}
	e, in := r.batch(9, 2)
	r.Execute([]wire.Execute{e})
	for id := range in {
		r.checkOutput(id, in[id])
	}
	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	if _, told := r.front.answers[queued.Items[0].ID]; told || r.front.twice != 0 {
		t.Errorf("what was forgotten was told: %v; %d requests were answered twice", told, r.front.twice)
	}
}

// picky is an executor that leaves all models to another one.
type picky struct{ *emu.Executor }

func (picky) Load(*device.Model) (device.Footprint, error) {
	return device.Footprint{}, fmt.Errorf("operator Einsum: %w", device.ErrUnsupported)
}

// host is an executor on the processor.
type host struct{ *emu.Executor }

func (host) Capabilities() device.Capabilities { return device.Capabilities{OnHost: true} }

// TestEveryGPUHasAKind shows that the kind and memory of a GPU are those of its first executor. Emulated GPUs are of
// one kind, whatever their names, and executors on processors are of their host's kind.
func TestEveryGPUHasAKind(t *testing.T) {
	open := func(name string) device.Executor {
		e, err := emu.Open(emu.Options{Device: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	zero, one := open("emulated 0").(*emu.Executor), open("emulated 1")
	for want, all := range map[string][]device.Executor{
		"emulated 85899345920": {one, host{zero}},
		"cpu/x/ort-1 0":        {host{zero}, one},
		" 0":                   nil,
	} {
		g := &gpu{executors: all}
		if d := g.detail("cpu/x/ort-1"); fmt.Sprint(d.Kind, " ", d.Memory) != want {
			t.Errorf("%d executors: %+v, want %s", len(all), d, want)
		}
	}
}

// TestAModelBesideTheGPUIsSaid checks that the log says which precision was requested, and why another one is served.
func TestAModelBesideTheGPUIsSaid(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1})
	m := *r.model
	source := *m.Source
	source.Config = &repo.Config{Params: map[string]string{"precision": "fp16"}}
	m.Source = &source
	var log bytes.Buffer
	b, err := New(Config{Models: []*device.Model{&m}, Node: r.node, GPUs: []GPU{{Name: "gpu 0", Executors: []device.Executor{picky{mustEmu(t)}, host{mustEmu(t)}}, Core: -1}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"level=WARN", "model=m", "asked=fp16", "precision=fp32", "Einsum"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log %q, want %s in it", log.String(), want)
		}
	}
	if n := b.Stats()[0].Aside; n != 1 {
		t.Errorf("%d models aside, want 1", n)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestSlotsThatAreNotPinnedAreSaid has a device that pins nothing.
func TestSlotsThatAreNotPinnedAreSaid(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 1})
	e, err := emu.Open(emu.Options{Plan: emu.Planned{Fault: emu.Fault{Op: "register", Device: cuda.Fault{Code: cuda.CodeOutOfMemory}}}})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	b, err := New(Config{Models: []*device.Model{r.model}, Node: r.node, GPUs: []GPU{{Name: "gpu 0", Executors: []device.Executor{e}, Core: -1}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.Stats()[0].Memory.Unpinned; n != slotsEach || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "ulimit") {
		t.Errorf("%d slots are not pinned, want %d; log %q", n, slotsEach, log.String())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestEachRowGoesToTheGPUAsItLands shows that inputs of 32 KiB or more are forwarded one by one, before their chain
// has ended, even beside a short one.
func TestEachRowGoesToTheGPUAsItLands(t *testing.T) {
	for i, provider := range []string{"local", "tcp", "shm", "local"} {
		r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 8, pixels: 20_000, plain: i < 3, front: rdma.Config{Providers: []string{provider}}})
		s := r.spy()
		e, inputs := r.batch(1, 8)
		e.Items[5].Input.Key++
		r.Execute([]wire.Execute{e})
		for id, in := range inputs {
			if id == e.Items[5].ID {
				r.checkReason(id, model.InputUnavailable)
				continue
			}
			r.checkOutput(id, in)
		}
		if s.mu.Lock(); s.arrivals != 7 || len(s.early) != 1 {
			t.Errorf("%s: %d calls for seven rows: %v", provider, s.arrivals, s.early)
		}
		s.mu.Unlock()
	}
}

// TestRowsGoToTheGPUWhileTheBatchBeforeRuns shows that the copies of a batch begin as its rows arrive, and that
// answers are correct although rows move when one fails.
func TestRowsGoToTheGPUWhileTheBatchBeforeRuns(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 50 * time.Millisecond, batchMax: 8, pixels: 20_000})
	s := r.spy()
	arrived := make(chan struct{})
	s.wait = func(n int) {
		if n == 1 {
			<-arrived
		}
	}
	first, in1 := r.batch(1, 4)
	r.Execute([]wire.Execute{first})
	r.waitFlying(1)
	second, in2 := r.batch(2, 8)
	second.Items[2].Input.Key++
	r.Execute([]wire.Execute{second})
	until(func() bool { return s.rows() >= 4+7 })
	close(arrived)
	if n := s.rows(); n != 4+7 {
		t.Errorf("%d rows were taken early, want 11", n)
	}
	for id, in := range in1 {
		r.checkOutput(id, in)
	}
	for id, in := range in2 {
		if id == second.Items[2].ID {
			r.checkReason(id, model.InputUnavailable)
			continue
		}
		r.checkOutput(id, in)
	}
	third, in3 := r.batch(3, 8) // on slots whose early rows were abandoned
	r.Execute([]wire.Execute{third})
	for id, in := range in3 {
		r.checkOutput(id, in)
	}
}

// TestLinkLost is the second half of invariant B1.
