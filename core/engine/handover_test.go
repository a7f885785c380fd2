package engine

import (
	"testing"

	"downbeat.dev/core/wire"
)

// TestANewRankerWaitsForTheOldOnesBatches: a GPU changes its sub-cluster alone while it runs a batch that ends much later
// than planned, as behind a model that warms up. The new sub-cluster's batches wait for the report of that end, not for the
// planned one, and begin when the report says that the GPU is free.
func TestANewRankerWaitsForTheOldOnesBatches(t *testing.T) {
	s := newStage(t, Options{Prompt: 1}) // batches are not deferred
	h := hello("b", 2, slope, "m", "later")
	h.Models[1].Profile, h.Models[1].Loaded = nil, []bool{false, false}
	b := s.mustBackend(h)
	f := s.frontend()
	b.hang = true
	f.ask(1, "m", 30*ms)
	s.run(3 * ms)
	late := s.e.parts[0].batches[0]

	if !b.Offer([]wire.Loadable{{Number: 1, Model: wire.BackendModel{Info: h.Models[1].Info, Profile: slope}}}) ||
		!b.Report([]wire.PlacementReport{{GPU: late.gpu.index, Model: 1, State: wire.Loaded}}) {
		t.Fatal("the load was refused")
	}
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
