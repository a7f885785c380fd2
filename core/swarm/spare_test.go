package swarm

import "testing"

// TestSpareWorkInTheEngine runs live engines in virtual time with and without learners on their backends. Checker C8
// holds V2: no batch begins after its latest start because of a step. Steps may cost requests that exceed the
// forecast, but few (decision 0150).
func TestSpareWorkInTheEngine(t *testing.T) {
	var steps, calls, good, without int
	for n := *seed; n < *seed+uint64(max(12, *seeds/6)); n++ {
		o := Draw(n).Calm()
		o.Backends, o.GPUs, o.Models, o.Burst = min(o.Backends, 4), min(o.GPUs, 4), min(o.Models, 20), 1
		o.Delay, o.Ctrl = 75_000, 100_000

		// Steps send messages: with random delays and batches both runs would differ in everything that follows.
		o.Vary, o.ExecLess, o.ExecMore, o.PollLate, o.ShufflePolls, o.Ahead, o.Drift = 0, 0, 0, 0, false, 0, 0
		o.Load, o.Span, o.Tight = min(o.Load, 0.9), 1e9, false
		o.Learners, o.SpareStep = 2, 2e6

		with, err := Run(o)
		if err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		o.Learners = 0
		alone, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if alone.Spare.Steps != 0 {
			t.Errorf("seed %d: %d steps without learners", n, alone.Spare.Steps)
		}
		steps, calls = steps+with.Spare.Steps, calls+with.Calls
		good, without = good+with.Good, without+alone.Good
	}
	t.Logf("%d steps; of %d requests %d were answered in time, %d without learners", steps, calls, good, without)
	if steps < 1000 {
		t.Errorf("%d steps ran: too few to show anything", steps)
	}
	if lost := without - good; lost*300 > calls {
		t.Errorf("%d of %d requests were lost to spare work, want at most one in three hundred", lost, calls)
	}
}
