package engine

import (
	"fmt"
	"testing"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// TestARequestKeepsTheLedger follows requests through an engine and compares the deadlines at the backend with the
// ledger.
func TestARequestKeepsTheLedger(t *testing.T) {
	for _, c := range []struct{ budget, trip, overrun sched.Time }{
		{50 * ms, ms / 2, 0},
		{50 * ms, ms / 2, 3 * ms},
		{30 * ms, 40 * ms, 40 * ms}, // both reach the limit of their share
	} {
		t.Run(fmt.Sprintf("budget=%d overrun=%d", c.budget/ms, c.overrun/ms), func(t *testing.T) {
			s := newStage(t, Options{Prompt: 1})
			s.mustBackend(hello("b", 1, slope, "m"))
			f := s.frontend()
			for i := range limits.OverrunTurn {
				s.e.parts[0].overrunIn(1).add(sched.Time(100+i)*ms, int64(c.overrun))
			}

			// The frontend tells less than its caller's deadline, and the engine aims at less than it was told.
			told := c.budget - limits.ReturnMargin(limits.ReturnTime(c.trip), c.budget)
			aim := told - limits.OverrunMargin(limits.Overrun(c.overrun, 0), told)
			s.clock.now = 1000 * ms
			f.Submit([]wire.Submit{{ID: 1, Model: f.models["m"].ID, Budget: int64(told)}})
			s.run(s.clock.now)

			if len(s.events) != 1 {
				t.Fatalf("%d batches are ordered, want 1", len(s.events))
			}
			x := s.events[0].x
			if got := sched.Time(x.Latest); got != aim-sched.Time(slope[0]) {
				t.Errorf("the latest start is %v ns ahead, want the aim, %v, less ℓ(1)", got, aim)
			}
			if got := sched.Time(x.Items[0].Budget) * microsecond; got != told {
				t.Errorf("the backend hears of %v ns, want what was told, %v: the overrun is no business of its", got, told)
			}
			s.run(s.clock.now + 20*ms)
			s.ended(1, "output")
		})
	}
}

// TestAStumbleIsLearntOnce: a GPU stumbles once, and two batches were sent behind it before the scheduler knew. sched
// corrects its plan for the GPU with the report. The two batches are late for the same reason, so they must not make
// three of 256 batches late and bring every deadline forward.
func TestAStumbleIsLearntOnce(t *testing.T) {
	s := newStage(t, Options{Prompt: 1})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()

	// A request comes every 10 ms and runs at once, alone, for 5 ms.
	last := uint64(0)
	ask := func(n int) {
		for range n {
			last++
			f.ask(last, "m", 50*ms)
			s.run(s.clock.now + 10*ms)
		}
	}
	ask(limits.OverrunLatest - limits.OverrunTurn)

	b.running[0] = s.clock.now + 30*ms
	stumbled := len(b.batches)
	ask(3)
	if n := len(b.batches) - stumbled; n != 3 {
		t.Fatalf("%d batches were sent into the stumble, want 3", n)
	}

	// The percentile is computed again after the next thirty-two samples.
	o := s.e.parts[0].overrunIn(1)
	for o.n < limits.OverrunLatest {
		ask(1)
	}
	if m := o.margin(50e6); m != 0 {
		t.Errorf("one stumble takes %d ns of every budget, want 0", m)
	}
}

// TestSteadyLatenessIsLearntWhole: if every batch is late, the batch behind it is twice as late before sched gets the
// report.
func TestSteadyLatenessIsLearntWhole(t *testing.T) {
	var o overrun
	const exec, own = sched.Duration(20 * ms), 2 * ms
	freed := sched.Time(0)

	// Batches are sent in pairs. The second is planned to start at the planned end of the first.
	for i := range sched.Time(2 * limits.OverrunLatest) {
		start := i * 100 * ms
		for k := range sched.Time(2) {
			planned := start + k*sched.Time(exec)
			end := max(planned, freed) + sched.Time(exec) + own
			o.addBatch(end, end, planned+sched.Time(exec), freed, exec)
			freed = end
		}
	}
	if m := o.margin(50e6); m != 2*own {
		t.Errorf("a pair ends %d ns late, and %d are left for it", 2*own, m)
	}
}
