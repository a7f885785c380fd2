package engine

import (
	"fmt"
	"strings"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// TestWindow shows that a window is a power of two, and that all windows together are bounded.
func TestWindow(t *testing.T) {
	s := newStage(t, Options{})
	open := func(window uint32) error {
		_, err := s.e.OpenFrontend(wire.FrontendHello{Name: "f", Window: window}, &front{s: s, models: map[string]model.Info{}})
		return err
	}
	for _, w := range []uint32{3, 1<<16 + 1, wire.WindowMax * 2, 1 << 31, ^uint32(0)} {
		if err := open(w); err == nil || !strings.Contains(err.Error(), "window") {
			t.Errorf("window %d: %v", w, err)
		}
	}
	for range windowsMax / wire.WindowMax {
		if err := open(wire.WindowMax); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(1); err == nil || !strings.Contains(err.Error(), "places") {
		t.Errorf("one place too many: %v", err)
	}
}

// TestSubmitOvertakenByClose: a burst that reaches a partition after its session was purged there queues nothing, and
// leaves the window of the session that has the slot by then.
func TestSubmitOvertakenByClose(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m"))
	gone := s.frontend()
	burst := []wire.Submit{{ID: 1, Model: gone.models["m"].ID, Budget: int64(50 * ms)}}
	gone.Close()
	next := s.frontend()
	next.ask(7, "m", 50*ms)

	// As Submit does once it has seen an open session.
	turn := s.e.beginTurn(&gone.spare)
	s.e.parts[0].submit(s.e, turn, gone.Frontend, burst)
	s.e.finishTurn(turn)
	if st := s.e.Stats(); st.Queued != 1 {
		t.Errorf("%d queued, want the next session's request alone", st.Queued)
	}
	next.Cancel([]wire.Cancel{{ID: 7, Model: next.models["m"].ID}})
	s.ended(7, "canceled")
}

// TestBatchForAnEarlierGPU shows that a batch does not go to the GPU that now has the number, if its own GPU left
// while the grant was on its way.
func TestBatchForAnEarlierGPU(t *testing.T) {
	s := newStage(t, Options{})
	old := s.mustBackend(hello("a", 1, slope, "m"))
	before := s.e.gpu(0)
	old.Close()
	s.mustBackend(hello("b", 1, slope, "m"))
	after := s.e.gpu(0)
	if after == nil || after.epoch == before.epoch {
		t.Fatalf("GPU 0 is %+v, then %+v", before, after)
	}
	p := s.e.parts[0]
	b := sched.Batch{ID: 1, GPU: 0, Epoch: before.epoch, Requests: make([]sched.Request, 1)}
	turn := s.e.beginTurn(&s.e.reg.spare)
	if p.startFlight(s.e, turn, &b) {
		t.Error("sent to the GPU that came later")
	}
	b.Epoch = after.epoch
	if !p.startFlight(s.e, turn, &b) {
		t.Error("not sent to the GPU that it is for")
	}
}

// TestTagsAlike shows that two ids with the same entry and tag are two requests, whether the first one is still
// queued, was sent, or has ended.
func TestTagsAlike(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()
	window := newIDWindow(1, wire.WindowDefault)
	one := uint64(5)
	_, tag := window.findEntry(one)
	two := one
	for m := tag + 1; m != tag; {
		two += wire.WindowDefault
		_, m = window.findEntry(two)
	}
	f.ask(one, "m", 50*ms)
	f.ask(two, "m", 50*ms)
	f.Cancel([]wire.Cancel{{ID: one}})
	s.ended(one, "canceled")
	if st := s.e.Stats(); st.Queued != 1 || st.Duplicates != 0 {
		t.Fatalf("%d queued and %d duplicates, want 1 and 0", st.Queued, st.Duplicates)
	}
	s.run(100 * ms)
	s.ended(two, "output")
	f.ask(one, "m", 50*ms)
	f.ask(one, "m", 50*ms)
	s.run(200 * ms)
	s.ended(one, "canceled", "output")
	if st := s.e.Stats(); st.Queued != 0 || st.Duplicates != 1 {
		t.Fatalf("%d queued and %d duplicates at the end, want 0 and 1", st.Queued, st.Duplicates)
	}
}

// TestManyModels shows that bursts over more models than fit the cache are prefetched. Unknown models, models without
// a queue and models of other partitions do no harm.
func TestManyModels(t *testing.T) {
	s := newStage(t, Options{})
	names := make([]string, 5001)
	for i := range names {
		names[i] = fmt.Sprint("m", i)
	}
	s.mustBackend(hello("b", 64, slope, names...))
	f := s.frontend()
	burst := make([]wire.Submit, 64)
	for i := range burst {
		burst[i] = wire.Submit{ID: uint64(i + 1), Model: uint32(i * 100), Budget: int64(500 * ms)}
	}
	f.Submit(burst)
	s.run(600 * ms)
	for i := range burst {
		want := "output"
		if i*100 >= len(names) {
			want = "unknown_model"
		}
		s.ended(uint64(i+1), want)
	}
}

// TestLostBatchesMemoryComesBack shows that the memory of a lost backend's batch is reused, but not while a turn that
// took orders may still pass it to a port.
func TestLostBatchesMemoryComesBack(t *testing.T) {
	s := newStage(t, Options{Partitions: 1})
	hung := s.mustBackend(hello("hung", 1, slope, "m"))
	hung.hang = true
	f := s.frontend()
	f.ask(1, "m", 50*ms)
	s.run(45 * ms)
	p := s.e.parts[0]
	p.begun++ // a turn that has not delivered yet
	hung.Close()
	if len(p.lost) != 1 {
		t.Fatalf("%d pieces of memory lost, want 1", len(p.lost))
	}
	s.run(300 * ms)
	if len(p.lost) != 1 {
		t.Fatal("taken back while a port may read it")
	}
	p.told.Add(1)
	s.run(600 * ms)
	if len(p.lost) != 0 {
		t.Error("not taken back")
	}
	s.ended(1, "backend_lost")
}
