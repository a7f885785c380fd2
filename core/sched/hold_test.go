package sched

import "testing"

// TestHeldGPUGetsNothing: a held GPU gets no batch until the hold ends, whatever it reports meanwhile, and gets one
// afterwards.
func TestHeldGPUGetsNothing(t *testing.T) {
	for _, busyFirst := range []bool{false, true} {
		x, _ := newPair(t)
		if busyFirst {
			for range 4 {
				x.ask()
			}
			x.carry()
			if len(x.running) != 1 {
				t.Fatalf("%d batches run, want 1", len(x.running))
			}
		}
		x.r.Hold(x.now, 0, Time(100*ms))
		before := x.p.Stats().Batches

		for x.now < Time(95*ms) {
			x.ask()
			x.pass(5 * ms)
		}
		if n := x.p.Stats().Batches - before; n != 0 {
			t.Errorf("busy before %v: a held GPU got %d batches", busyFirst, n)
		}

		x.served = 0
		for range 20 {
			x.ask()
			x.pass(5 * ms)
		}
		if x.served < 15 {
			t.Errorf("busy before %v: %d of 20 requests were served after the hold", busyFirst, x.served)
		}
	}
}

// TestHeldGPUsLeaveTheLoadToOthers: the demand per GPU, by which batches grow, counts only GPUs that may run some.
func TestHeldGPUsLeaveTheLoadToOthers(t *testing.T) {
	x, _ := newPair(t)
	if err := x.r.AddGPU(x.now, 1, 2); err != nil {
		t.Fatal(err)
	}
	x.r.demand = 1_200_000
	want := func(what string, load float64) {
		t.Helper()
		if got := x.r.load(); got != load {
			t.Errorf("%s: %v per GPU, want %v", what, got, load)
		}
	}
	want("two GPUs", 0.6)
	x.r.Hold(x.now, 1, Time(100*ms))
	x.r.Hold(x.now, 1, Time(100*ms)) // the same one
	want("one of them held", 1.2)
	x.r.Hold(x.now, 1, x.now)
	want("released", 0.6)
	x.r.Hold(x.now, 1, Time(100*ms))
	x.r.RemoveGPU(x.now, 1)
	want("removed while it was held", 1.2)
	if err := x.r.AddGPU(x.now, 1, 3); err != nil {
		t.Fatal(err)
	}
	want("there again", 0.6)
}

// TestAHoldThatIsEndedFreesTheGPU: ending a hold frees a GPU without a batch at once, not at the hold's time.
func TestAHoldThatIsEndedFreesTheGPU(t *testing.T) {
	r := NewRanker(1, Options{})
	if err := r.AddGPU(0, 0, 1); err != nil {
		t.Fatal(err)
	}
	r.Hold(10, 0, 1e9)
	if got := r.Load().Idle; got != 0 {
		t.Fatalf("%d idle GPUs while the only one is held", got)
	}
	r.Hold(20, 0, 20)
	if got := r.Load().Idle; got != 1 {
		t.Errorf("%d idle GPUs after the hold was ended, want 1", got)
	}
}
