package engine

import (
	"strings"
	"testing"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// TestSeatIsTakenOver: two ids that share a place of the window are two requests; the frontend has
// ended the first, so a cancel of it finds nobody, and the second is known as a twin when it comes again.
func TestSeatIsTakenOver(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()
	one, two := uint64(5), uint64(5+wire.WindowDefault)
	f.ask(one, "m", 50*ms)
	f.ask(two, "m", 50*ms)
	f.ask(two, "m", 50*ms)
	f.Cancel([]wire.Cancel{{ID: one}})
	if st := s.e.Stats(); st.Queued != 2 || st.Twins != 1 {
		t.Fatalf("%d queued and %d twins, want 2 and 1", st.Queued, st.Twins)
	}
	s.run(100 * ms)
	s.ended(one, "output")
	s.ended(two, "output")
	f.ask(one, "m", 50*ms)
	f.Cancel([]wire.Cancel{{ID: two}, {ID: one, Model: 9}, {ID: one}})
	s.run(100 * ms)
	s.ended(one, "output", "canceled")
	if st := s.e.Stats(); st.Queued != 0 {
		t.Errorf("%d queued at the end", st.Queued)
	}
}

// TestWindow: a window is a power of two, and all together are bounded.
func TestWindow(t *testing.T) {
	s := newStage(t, Options{})
	open := func(window uint32) error {
		_, err := s.e.OpenFrontend(wire.FrontendHello{Name: "f", Window: window}, &front{s: s, models: map[string]wire.ModelInfo{}})
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

// TestBatchForAnEarlierGPU: a batch whose GPU went while the grant was under way does not go to the GPU
// that has the number now.
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
	turn := s.e.begin(&s.e.reg.spare)
	if p.send(s.e, turn, &b) {
		t.Error("sent to the GPU that came later")
	}
	b.Epoch = after.epoch
	if !p.send(s.e, turn, &b) {
		t.Error("not sent to the GPU that it is for")
	}
}
