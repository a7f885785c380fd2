package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// shelf is a repository of emulated models.
type shelf struct {
	mu     sync.Mutex
	models map[string]*device.Model // guarded by mu
}

func (s *shelf) find(_ context.Context, name, _ string) ([]*device.Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.models[name]
	if m == nil {
		return nil, fmt.Errorf("model %s: not found", name)
	}
	again := *m
	return []*device.Model{&again}, nil
}

// stock gives the rig's backend a repository with a model whose rows are larger than those of its own model.
func (r *rig) stock(name string, bytes int64) *device.Model {
	m := devicetest.Emulated(r.t, name, 4, 100*time.Microsecond, 0,
		[]model.Tensor{tensor("image", "UINT8", bytes)}, []model.Tensor{tensor("scores", "FP32", 10)})
	r.config.Find = (&shelf{models: map[string]*device.Model{name: m}}).find
	return m
}

// numberOf returns the backend's number of a model.
func (r *rig) numberOf(name string) uint32 {
	for i, e := range r.modelEntries() {
		if e.model.Name == name {
			return uint32(i)
		}
	}
	r.t.Fatalf("model %s has no number", name)
	return 0
}

// runOne runs a batch of one request of a model on a GPU and checks the output.
func (r *rig) runOne(m *device.Model, gpu uint32, batch uint64) {
	r.t.Helper()
	own := r.model
	r.model = m
	defer func() { r.model = own }()
	e, inputs := r.batch(batch, 1)
	e.GPU, e.Model = gpu, r.numberOf(m.Name)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	r.checkFailures(batch)
}

// states lists the reported states of a model on GPU 0, without repetition.
func (r *rig) states(model uint32) (all []wire.PlacementState) {
	r.sched.mu.Lock()
	defer r.sched.mu.Unlock()
	for _, x := range r.sched.reports {
		if x.Model == model && x.GPU == 0 && (len(all) == 0 || all[len(all)-1] != x.State) {
			all = append(all, x.State)
		}
	}
	return all
}

// keepServing sends batches of the rig's own model to a GPU, one after another, until stop is called. All must be
// answered.
func (r *rig) keepServing(gpu uint32, first uint64) (stop func() (batches int)) {
	var over atomic.Bool
	ended, begun := make(chan int), make(chan struct{})
	in := r.input()
	d := r.front.offer(in)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			if n == 1 {
				close(begun)
			}
			id := first + uint64(n)
			r.Execute([]wire.Execute{{Batch: id, GPU: gpu, Latest: int64(20 * time.Second),
				Items: []wire.Item{{Frontend: 1, ID: id, Budget: us(20 * time.Second), Input: d}}}})
			if x, _ := r.sched.wait(id); len(x.Failures) != 0 {
				r.t.Errorf("GPU %d: batch %d: %v", gpu, id, x.Failures)
				break
			}
		}
		if n <= 1 {
			close(begun)
		}
		ended <- n
	}()
	<-begun
	return func() int {
		over.Store(true)
		return <-ended
	}
}

// TestModelsComeAndGoUnderLoad repeatedly loads a model that needs larger slots and unloads it, while another is
// served. Every batch is answered, and the memory of slots is freed, on the device and in the data plane.
func TestModelsComeAndGoUnderLoad(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: 200 * time.Microsecond, batchMax: 2})
	m := r.stock("large", 200_000)
	before, bytesBefore := r.Stats()[0].Memory, r.node.Stats().BytesLive
	stop := r.keepServing(0, 1_000_000)
	for round := range uint64(4) {
		if err := r.LoadModel(t.Context(), "large", ""); err != nil {
			t.Fatal(err)
		}
		if during := r.Stats()[0].Memory.SlotBytes; during < before.SlotBytes+slotsEach*200_000 {
			t.Errorf("slots take %d bytes on the device with the large model loaded, %d before", during, before.SlotBytes)
		}
		r.runOne(m, 0, 10+2*round)
		r.runOne(m, 1, 11+2*round)
		if err := r.UnloadModel(t.Context(), "large", ""); err != nil {
			t.Fatal(err)
		}
		if after := r.Stats()[0].Memory; after.SlotBytes != before.SlotBytes || after.DeviceBytes != before.DeviceBytes {
			t.Errorf("%+v before, %+v after", before, after)
		}
		if after := r.node.Stats().BytesLive; after != bytesBefore {
			t.Errorf("%d bytes of the data plane held before, %d after", bytesBefore, after)
		}
	}
	if n := stop(); n < 5 { // one a round, and more
		t.Errorf("%d batches were served meanwhile", n)
	}
	if got := fmt.Sprint(r.states(r.numberOf("large"))); !strings.HasPrefix(got, "[loaded unloading unloaded loaded") {
		t.Errorf("reports: %v", got)
	}
}

// TestUnloadWaitsForBatchesUnderWay unloads a model during one of its batches. That batch is answered, a new one is
// returned, and the model is gone afterwards.
func TestUnloadWaitsForBatchesUnderWay(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Second, batchMax: 1}) // a GPU hangs if it takes several times as long
	looked := make(chan struct{})
	r.spy().wait = func(int) { <-looked } // the batch runs until then
	first, inputs := r.batch(1, 1)
	r.Execute([]wire.Execute{first})
	r.waitFlying(1)
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := r.UnloadModel(short, "m", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("unload with a batch under way: %v", err)
	}
	ended := make(chan error)
	go func() { ended <- r.UnloadModel(t.Context(), "m", "1") }()
	until(func() bool { return len(r.states(0)) == 3 }) // unloading, loaded again, unloading

	late, _ := r.batch(2, 1)
	r.Execute([]wire.Execute{late})
	r.checkFailures(2, wire.ItemFailure{Reason: model.NoBackend})
	close(looked)
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	after, _ := r.batch(3, 1)
	r.Execute([]wire.Execute{after})
	r.checkFailures(3, wire.ItemFailure{Reason: model.NoBackend})
	if n := r.Stats()[0].Loaded; n != 0 {
		t.Errorf("%d models loaded", n)
	}
	if err := r.UnloadModel(t.Context(), "m", ""); !errors.Is(err, errNotLoaded) {
		t.Errorf("unloaded twice: %v", err)
	}
}

// TestALoadThatFailsLeavesTheOldOne changes the repository's model to one that cannot be loaded.
func TestALoadThatFailsLeavesTheOldOne(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 1})
	broken, source := *r.model, *r.model.Source
	source.Inputs = source.Inputs[:1] // other shapes, so it must be loaded beside the old one
	broken.Source, broken.Profile = &source, nil
	r.config.Find = (&shelf{models: map[string]*device.Model{"m": &broken}}).find
	stop := r.keepServing(0, 100)
	for range 3 {
		if err := r.LoadModel(t.Context(), "m", ""); err == nil || !strings.Contains(err.Error(), "no profile") {
			t.Errorf("load of a model without a profile: %v", err)
		}
	}
	if err := r.LoadModel(t.Context(), "gone", ""); err == nil || !strings.Contains(err.Error(), "model gone: not found") {
		t.Errorf("load of a model that is not there: %v", err)
	}
	if n := stop(); n == 0 {
		t.Error("nothing was served meanwhile")
	}
	if got := r.states(0); len(got) != 1 || got[0] != wire.LoadFailed {
		t.Errorf("reports: %v", got)
	}
}

// TestOtherShapesReplaceAModel loads a version of a model with other shapes under the same name. The old version
// serves until the new one can.
func TestOtherShapesReplaceAModel(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 1})
	m := devicetest.Emulated(t, "m", 2, 100*time.Microsecond, 0, []model.Tensor{tensor("text", "INT32", 9)}, []model.Tensor{tensor("y", "FP32", 3)})
	r.config.Find = (&shelf{models: map[string]*device.Model{"m": m}}).find
	if err := r.LoadModel(t.Context(), "m", ""); err != nil {
		t.Fatal(err)
	}
	r.runOne(m, 0, 1)
	r.sched.mu.Lock()
	defer r.sched.mu.Unlock()
	if n := len(r.sched.offers); n != 1 || r.sched.offers[0].Number != 0 || r.sched.offers[0].Model.Info.Inputs[0].Name != "text" {
		t.Errorf("offers %+v", r.sched.offers)
	}
}

// keepingUnload is an executor whose unloads fail, as those of a GPU that cannot free memory do.
type keepingUnload struct{ device.Executor }

var errKept = errors.New("memory is not free")

func (k keepingUnload) Unload(m *device.Model) error {
	return errors.Join(errKept, k.Executor.Unload(m))
}

// TestAModelReplacesOneThatCannotBeUnloaded: once the old model is drained it takes no orders, so the new one must
// serve whatever becomes of the old one's memory. One form of the new model fits the old one's requests, one does not.
func TestAModelReplacesOneThatCannotBeUnloaded(t *testing.T) {
	for _, input := range []model.Tensor{tensor("image", "UINT8", 40), tensor("text", "INT32", 9)} {
		r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 1, plain: true})
		of := func(in model.Tensor) *device.Model {
			return devicetest.Emulated(t, "new", 2, 100*time.Microsecond, 0, []model.Tensor{in}, []model.Tensor{tensor("y", "FP32", 3)})
		}
		s := &shelf{models: map[string]*device.Model{"new": of(tensor("image", "UINT8", 40))}}
		r.config.Find = s.find
		if err := r.LoadModel(t.Context(), "new", ""); err != nil {
			t.Fatal(err)
		}
		r.gpus[0].executors[0] = keepingUnload{r.gpus[0].executors[0]}
		r.gpus[0].routeOf(r.numberOf("new")).executor = r.gpus[0].executors[0]

		next := of(input)
		next.Source.Config.Params = map[string]string{"changed": "yes"} // other settings, so it is loaded beside the old one
		s.mu.Lock()
		s.models["new"] = next
		s.mu.Unlock()
		if err := r.LoadModel(t.Context(), "new", ""); err != nil {
			t.Errorf("input %s: %v", input.Name, err)
		}
		r.runOne(next, 0, 1)

		// An unload that frees nothing is no unload, and ends in a report.
		if err := r.UnloadModel(t.Context(), "new", ""); !errors.Is(err, errKept) {
			t.Errorf("unloaded without freeing: %v", err)
		}
		if all := r.states(r.numberOf("new")); all[len(all)-1] != wire.LoadFailed {
			t.Errorf("reports: %v, want the failure last", all)
		}
		r.gpus[0].executors[0] = r.gpus[0].executors[0].(keepingUnload).Executor
	}
}

// TestLoadsAtOnceWaitForEachOther loads and unloads from several goroutines.
func TestLoadsAtOnceWaitForEachOther(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 1})
	m := r.stock("large", 100_000)
	var wait sync.WaitGroup
	for range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for range 5 {
				if err := r.LoadModel(t.Context(), "large", "1"); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
	r.runOne(m, 1, 7)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.beginPlacing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.LoadModel(ctx, "large", "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("load while another has the turn, canceled: %v", err)
	}
	r.endPlacing()
}

// TestTheSchedulerPlacesModels sends placements as the scheduler does. Each ends with a report that has its number.
func TestTheSchedulerPlacesModels(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 1})
	report := func(number uint64) (last wire.PlacementReport) {
		until(func() bool {
			r.sched.mu.Lock()
			defer r.sched.mu.Unlock()
			for _, x := range r.sched.reports {
				if x.Number == number && x.State != wire.Unloading {
					last = x
					return true
				}
			}
			return false
		})
		return last
	}
	for i, c := range []struct {
		ask  wire.Placement
		want wire.PlacementState
	}{
		{wire.Placement{Op: wire.Load, GPU: 1}, wire.Loaded},
		{wire.Placement{Op: wire.Unload, GPU: 1}, wire.Unloaded},
		{wire.Placement{Op: wire.Unload, GPU: 1}, wire.Unloaded},
		{wire.Placement{Op: wire.Update, GPU: 1}, wire.Loaded},
		{wire.Placement{Op: wire.Update, GPU: 1}, wire.Loaded},
		{wire.Placement{Op: wire.Load, GPU: 1, Model: 9}, wire.LoadFailed},
		{wire.Placement{Op: wire.Load, GPU: 2}, wire.LoadFailed},
	} {
		c.ask.Number = uint64(i + 1)
		r.Place([]wire.Placement{c.ask})
		if got := report(c.ask.Number); got.State != c.want || got.GPU != c.ask.GPU || got.Model != c.ask.Model || (got.Text != "") != (c.want == wire.LoadFailed) {
			t.Errorf("%+v: %+v", c.ask, got)
		}
	}
	r.runOne(r.model, 1, 1)
	r.runOne(r.model, 0, 2)
}

// TestASessionIsToldWhatChanged unloads a model without a session. The next hello is the one of the start, and the
// session is told what has changed since.
func TestASessionIsToldWhatChanged(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 1})
	r.stock("large", 1000)
	if err := errors.Join(r.LoadModel(t.Context(), "large", ""), r.UnloadModel(t.Context(), "m", "")); err != nil {
		t.Fatal(err)
	}
	r.sched.mu.Lock()
	r.sched.offers, r.sched.reports = nil, nil
	r.sched.mu.Unlock()
	r.Link(true, nil)
	if got := fmt.Sprint(r.states(0), r.states(1)); got != "[unloaded] [loaded]" || len(r.sched.offers) != 1 || r.sched.offers[0].Number != 1 {
		t.Errorf("a new session is told %v and %+v", got, r.sched.offers)
	}
}

// haltingLoad is an executor whose loads wait, and then fail.
type haltingLoad struct {
	device.Executor
	asked chan struct{}
	fails chan error
}

func (h *haltingLoad) Load(*device.Model) (device.Footprint, error) {
	close(h.asked)
	return device.Footprint{}, <-h.fails
}

// TestHalfAPublicationServesBothVersions: a new version is on one GPU of two when the loading process dies. Until
// then each version answers its own requests; afterwards the previous version is everywhere, and the new one nowhere.
func TestHalfAPublicationServesBothVersions(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 1})
	next := *r.model
	next.Version = "2"
	r.config.Find = (&shelf{models: map[string]*device.Model{"m": &next}}).find
	halt := &haltingLoad{Executor: r.gpus[1].executors[0], asked: make(chan struct{}), fails: make(chan error)}
	r.gpus[1].executors[0] = halt

	ended := make(chan error, 1)
	go func() { ended <- r.LoadModel(t.Context(), "m", "") }()
	<-halt.asked

	// Version 1 has number 0, version 2 has number 1.
	run := func(batch uint64, gpu, number uint32) {
		e, inputs := r.batch(batch, 1)
		e.GPU, e.Model = gpu, number
		r.Execute([]wire.Execute{e})
		for id, in := range inputs {
			r.checkOutput(id, in)
		}
		r.checkFailures(batch)
	}
	run(1, 0, 1)
	run(2, 1, 0)
	run(3, 0, 0)

	killed := errors.New("killed")
	halt.fails <- killed
	if err := <-ended; !errors.Is(err, killed) {
		t.Errorf("half a publication ended with %v", err)
	}
	for i, g := range r.gpus {
		if g.routeOf(0) == nil || g.routeOf(1) != nil {
			t.Errorf("GPU %d: version 1 %v, version 2 %v: want the first alone", i, g.routeOf(0) != nil, g.routeOf(1) != nil)
		}
	}
	run(4, 0, 0)
	run(5, 1, 0)
}
