package engine

import (
	"testing"

	"downbeat.dev/core/wire"
)

// newHandover is a stage with a backend. One of its GPUs runs a batch of m for as long as the backend hangs. The
// backend also has a model "later", which is loaded nowhere.
func newHandover(t *testing.T, gpus int) (s *stage, b *emulated, f *front, runs flight) {
	t.Helper()
	s = newStage(t, Options{Prompt: 1}) // batches are not deferred
	h := hello("b", gpus, slope, "m", "later")
	h.Models[1].Profile, h.Models[1].Loaded = nil, make([]bool, gpus)

	b, f = s.mustBackend(h), s.frontend()
	b.hang = true
	f.ask(1, "m", 30*ms)
	s.run(3 * ms)
	return s, b, f, s.e.parts[0].batches[0]
}

// loadLater reports that a GPU has loaded "later", which changes its sub-cluster.
func (b *emulated) loadLater(u *gpu) {
	b.s.t.Helper()
	if !b.Offer([]wire.Loadable{{Number: 1, Model: wire.BackendModel{Info: b.said.Models[1].Info, Profile: slope}}}) ||
		!b.Report([]wire.PlacementReport{{GPU: u.index, Model: 1, State: wire.Loaded}}) {
		b.s.t.Fatal("the load was refused")
	}
}

// TestANewRankerWaitsForTheOldOnesBatches: a GPU changes its sub-cluster alone while it runs a batch that ends much
// later than planned, for example behind a model that warms up. The new sub-cluster's batches wait for the report of
// that end, not for the planned end, and begin when the report says that the GPU is free.
func TestANewRankerWaitsForTheOldOnesBatches(t *testing.T) {
	s, b, f, late := newHandover(t, 2)

	b.loadLater(late.gpu)
	if s.e.gpu(late.gpu.id) == late.gpu {
		t.Fatal("the GPU stays where it was: nothing is tried")
	}
	f.ask(2, "later", 700*ms)
	b.hang = false
	s.run(late.ends + 300*ms)
	if len(b.batches) != 1 {
		t.Fatalf("batches %v, while the first is still under way", b.batches)
	}

	free := s.clock.now + 20*ms
	b.Done([]wire.Done{{Batch: s.e.parts[0].wireID(0), GPU: late.gpu.index, Exec: int64(late.exec), FreeIn: int64(20 * ms)}})
	s.run(s.clock.now + 2*ms)
	if next := s.e.gpu(late.gpu.id); len(s.e.reg.awaited) > 1 || next.batch.Load() != 0 {
		t.Errorf("%d GPUs are waited for; a batch was sent 18 ms before the GPU is free: %v", len(s.e.reg.awaited), b.batches)
	}
	s.run(free + ms)
	if len(b.batches) != 2 {
		t.Errorf("batches %v a ms after the GPU is free", b.batches)
	}
	s.run(free + 200*ms)
	s.ended(2, "output")
	if len(s.e.reg.awaited) != 0 {
		t.Errorf("%d GPUs are waited for at the end", len(s.e.reg.awaited))
	}
}

// TestANewRankerWaitsForABatchReportedAhead: a backend reports a batch 20 ms before its end, and then the GPU changes
// its sub-cluster. The new sub-cluster's batches wait for that end, although no batch is in flight.
func TestANewRankerWaitsForABatchReportedAhead(t *testing.T) {
	s, b, f, ran := newHandover(t, 2)
	b.hang = false

	free := s.clock.now + 20*ms
	b.Done([]wire.Done{{Batch: s.e.parts[0].wireID(0), GPU: ran.gpu.index, Exec: int64(ran.exec), FreeIn: int64(20 * ms)}})
	b.loadLater(ran.gpu)
	f.ask(2, "later", 700*ms)
	s.run(free - 2*ms)
	if s.e.gpu(ran.gpu.id) == ran.gpu || len(b.batches) != 1 {
		t.Errorf("the GPU has not moved, or a batch was sent 2 ms before it is free: %v", b.batches)
	}
	s.run(free + 200*ms)
	s.ended(2, "output")
}

// TestAStepThatWaitedForAnotherRankersBatchIsOrderedAtOnce: the report that ends the wait of a moved GPU makes its
// new ranker start a step of spare work. The step is sent at once, because the next turn of that backend might be
// much later, when the GPU has other work.
func TestAStepThatWaitedForAnotherRankersBatchIsOrderedAtOnce(t *testing.T) {
	s, b, _, ran := newHandover(t, 1)
	b.hang = false
	b.OfferSpare([]wire.SpareOffer{{Work: 1, Step: int64(ms), Weight: 1}})
	b.loadLater(ran.gpu)
	s.run(s.clock.now + 50*ms)
	if len(b.steps) != 0 {
		t.Fatalf("steps %+v while the GPU runs a batch", b.steps)
	}

	b.Done([]wire.Done{{Batch: s.e.parts[0].wireID(0), GPU: ran.gpu.index, Exec: int64(ran.exec)}})
	if len(b.steps) != 1 {
		t.Errorf("%d steps were ordered with the report, want 1", len(b.steps))
	}
}
