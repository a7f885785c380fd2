package engine

import "testing"

// TestStalledBackendGetsNoBatches: while nothing arrives at one of two backends, all batches go to the other, and
// later to both again. A closed or failing backend may also stall.
func TestStalledBackendGetsNoBatches(t *testing.T) {
	s := newStage(t, Options{})
	dark, lit := s.mustBackend(hello("dark", 2, slope, "m")), s.mustBackend(hello("lit", 2, slope, "m"))
	f := s.frontend()

	// Half of the load that two GPUs serve in batches of four.
	every := 4 * ms
	s.offerFor(f, "m", 1, every, 60*ms, 500*ms)
	if len(dark.batches) == 0 {
		dark, lit = lit, dark // the GPUs are equal, so the ranker may prefer either
	}

	before, of := len(dark.batches), len(lit.batches)
	for i := range uint64(5) {
		dark.Stall()
		asked, served := s.offerFor(f, "m", 1000+1000*i, every, 60*ms, 100*ms)
		if served != asked {
			t.Errorf("the other backend served %d of %d requests", served, asked)
		}
	}
	if n := len(dark.batches) - before; n != 0 || len(lit.batches) == of {
		t.Errorf("%d batches for a backend that nothing arrives at", n)
	}

	s.run(s.clock.now + 300*ms)
	before = len(dark.batches)
	s.offerFor(f, "m", 1<<20, every, 60*ms, 500*ms)
	if len(dark.batches) == before {
		t.Error("none afterwards, either")
	}

	dark.Close()
	dark.Stall()
	s.offerFor(f, "m", 1<<21, every, 60*ms, 100*ms)
}
