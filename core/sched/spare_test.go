package sched

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// spareRig is a Scheduler with GPUs, one model and spare work, whose driver ends batches and steps as the test says.
type spareRig struct {
	t   testing.TB
	s   *Scheduler
	now Time
	id  RequestID
	// The orders of the latest call.
	batches []Batch
	steps   []SpareStep
}

// newSpareRig returns a rig with GPUs 0, 1, …, ℓ(b) = b + 4 ms and an SLO of 40 ms: a request leaves 34 ms.
func newSpareRig(t testing.TB, gpus int) *spareRig {
	x := &spareRig{t: t, s: New(Options{})}
	if err := x.s.AddModel(0, 0, Model{Profile: line(t, time.Millisecond, 4*time.Millisecond, 16), SLO: 40 * ms, Rate: 100}); err != nil {
		t.Fatal(err)
	}
	for g := range gpus {
		if err := x.s.AddGPU(0, GPUID(g), 0); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// take reads the orders of a call.
func (x *spareRig) take() {
	batches, _ := x.s.Actions()
	x.batches = append(x.batches[:0], batches...)
	x.steps = append(x.steps[:0], x.s.SpareSteps()...)
}

func (x *spareRig) offer(w SpareWork) {
	x.t.Helper()
	if err := x.s.OfferSpare(x.now, 0, w); err != nil {
		x.t.Fatal(err)
	}
	x.take()
}

func (x *spareRig) ask() {
	x.id++
	x.s.Enqueue(x.now, Request{ID: x.id, Deadline: x.now.Add(40 * ms)})
	x.take()
}

// advance lets time pass and obeys every wake-up.
func (x *spareRig) advance(to Time) {
	var batches []Batch
	var steps []SpareStep
	for {
		x.now = max(x.now, min(to, x.s.NextWake()))
		x.s.Advance(x.now)
		x.take()
		batches, steps = append(batches, x.batches...), append(steps, x.steps...)
		if x.now >= to {
			x.batches, x.steps = batches, steps
			return
		}
	}
}

func (x *spareRig) end(step SpareStep, at Time) error {
	x.now = max(x.now, at)
	err := x.s.EndSpare(x.now, step.GPU, step.Epoch, at)
	x.take()
	return err
}

func gpusOf(steps []SpareStep) (ids []GPUID) {
	for _, s := range steps {
		ids = append(ids, s.GPU)
	}
	return ids
}

// TestSpareTakesIdleGPUs: all GPUs that no request can want get a step, the highest numbers first, and another when
// one ends.
func TestSpareTakesIdleGPUs(t *testing.T) {
	x := newSpareRig(t, 3)
	x.offer(SpareWork{ID: 7, Step: 5 * ms, Weight: 1})
	if got := fmt.Sprint(gpusOf(x.steps)); got != "[2 1 0]" {
		t.Fatalf("steps on %s, want on all, the highest first", got)
	}
	first := x.steps[0]
	if first.Work != 7 || first.Start != 0 || first.End != Time(5*ms) {
		t.Errorf("step %+v, want one of 5 ms from now", first)
	}

	if err := x.end(first, Time(4*ms)); err != nil || len(x.steps) != 1 || x.steps[0].GPU != 2 || x.steps[0].Start != Time(4*ms) {
		t.Errorf("%v, steps %+v; want another on GPU 2", err, x.steps)
	}
	if err := x.end(first, Time(4*ms)); err != nil {
		t.Errorf("the second step's end: %v", err)
	}
	x.s.RemoveGPU(x.now, 2)
	x.take()
	if err := x.end(first, Time(4*ms)); !errors.Is(err, ErrUnknown) {
		t.Errorf("the end of a step on a GPU that is gone: %v, want ErrUnknown", err)
	}
}

// TestSpareLeavesGPUsForCandidates: a candidate that must start before a step would end keeps a GPU idle; one that
// may start later does not. With few GPUs a candidate that may start soon after the step also keeps one idle.
func TestSpareLeavesGPUsForCandidates(t *testing.T) {
	for _, c := range []struct {
		at   Time // time of the offer; the request came at 0, and must be sent by 35 ms
		gpus int
		want string
	}{{Time(15 * ms), 2, "[1 0]"}, {Time(20 * ms), 2, "[1]"}, {Time(20 * ms), 8, "[7 6 5 4 3 2 1 0]"}, {Time(27 * ms), 8, "[7 6 5 4 3 2 1]"}} {
		x := newSpareRig(t, c.gpus)
		x.ask()
		x.now = c.at
		x.offer(SpareWork{ID: 1, Step: 10 * ms, Weight: 1})
		if got := fmt.Sprint(gpusOf(x.steps)); got != c.want {
			t.Errorf("offered at %d ms to %d GPUs: steps on %s, want on %s", c.at/Time(ms), c.gpus, got, c.want)
		}

		var ran []Batch
		for _, s := range x.steps {
			x.advance(s.Start.Add(9 * ms))
			ran = append(ran, x.batches...)
			if s.Start.Add(9*ms) >= x.now {
				_ = x.end(s, x.now)
				ran = append(ran, x.batches...)
			}
		}
		x.advance(Time(60 * ms))
		ran = append(ran, x.batches...)
		if len(ran) != 1 || ran[0].ExecAt > ran[0].Latest {
			t.Errorf("offered at %d ms: batches %+v, want the request's, in time", c.at/Time(ms), ran)
		}
	}
}

// TestSpareIsNoLongerThanRequestsLeave: if a request's budget leaves less time than a step takes, a request that
// arrives now could wait too long for it.
func TestSpareIsNoLongerThanRequestsLeave(t *testing.T) {
	s := New(Options{})
	if err := s.AddModel(0, 0, Model{Profile: line(t, time.Millisecond, 4*time.Millisecond, 16), SLO: 14 * ms}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddGPU(0, 0, 0); err != nil {
		t.Fatal(err)
	}
	for step, want := range map[Duration]int{8 * ms: 1, 8*ms + 1: 0} {
		if err := s.OfferSpare(0, 0, SpareWork{ID: 1, Step: step, Weight: 1}); err != nil {
			t.Fatal(err)
		}
		steps := append([]SpareStep(nil), s.SpareSteps()...)
		if len(steps) != want {
			t.Errorf("steps of %d ns: %d, want %d: 14 ms leave 8 beside a batch of two", step, len(steps), want)
		}
		for _, x := range steps {
			s.WithdrawSpare(0, 0, 1)
			if err := s.EndSpare(0, x.GPU, x.Epoch, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestBatchBehindStep: a GPU that runs a step may be granted for the time after it, and the step's actual end moves
// the plan.
func TestBatchBehindStep(t *testing.T) {
	s := New(Options{Ctrl: 3 * ms})
	if err := s.AddModel(0, 0, Model{Profile: line(t, time.Millisecond, 4*time.Millisecond, 16), SLO: 60 * ms, Rate: 100}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddGPU(0, 0, 0); err != nil {
		t.Fatal(err)
	}
	x := &spareRig{t: t, s: s, now: Time(44 * ms)}
	x.s.Enqueue(0, Request{ID: 1, Deadline: Time(59 * ms)}) // ripe at 50 ms, due at 51
	x.take()
	x.offer(SpareWork{ID: 1, Step: 1 * ms, Weight: 1})
	if len(x.steps) != 1 || x.steps[0].Start != Time(47*ms) || x.steps[0].End != Time(48*ms) {
		t.Fatalf("steps %+v, want one from 47 to 48 ms", x.steps)
	}
	step := x.steps[0]

	x.advance(Time(50*ms) - 1)
	if len(x.batches)+len(x.steps) > 0 {
		t.Fatalf("batches %+v and steps %+v before the candidate is ripe", x.batches, x.steps)
	}
	x.advance(Time(50 * ms))
	if len(x.batches) != 1 || x.batches[0].ExecAt != Time(53*ms) {
		t.Fatalf("batches %+v, want one behind the step", x.batches)
	}
	if l := s.Load(0); l.Idle != 0 || l.Busy != 5*ms {
		t.Errorf("load %+v: want no idle GPU, and 5 ms that the batch takes", l)
	}
	if err := x.end(step, Time(52*ms)); err != nil || len(x.steps) > 0 {
		t.Errorf("%v, steps %+v; want none behind the batch", err, x.steps)
	}
}

// TestSpareStaysOutOfSignals: spare work is not load, and its GPUs count as idle.
func TestSpareStaysOutOfSignals(t *testing.T) {
	x := newSpareRig(t, 4)
	x.ask()
	before := x.s.Load(0)
	x.offer(SpareWork{ID: 1, Step: 5 * ms, Weight: 1})
	if len(x.steps) != 4 {
		t.Fatalf("%d steps, want 4", len(x.steps))
	}
	if after := x.s.Load(0); after != before {
		t.Errorf("load %+v with spare work, %+v without", after, before)
	}
}

// TestStepThatNeverEnds: a GPU whose step's end is not reported gets nothing for as long again; then requests get the
// GPU, and the work gets no further step until it is offered anew.
func TestStepThatNeverEnds(t *testing.T) {
	x := newSpareRig(t, 1)
	x.offer(SpareWork{ID: 1, Step: 5 * ms, Weight: 1})
	step := x.steps[0]
	x.advance(Time(10*ms) - 1)
	if st := x.s.SpareStats(); st.Lost != 0 || len(x.steps) > 0 {
		t.Fatalf("given up early: %+v, %v", st, x.steps)
	}
	x.advance(Time(200 * ms))
	if st := x.s.SpareStats(); st.Lost != 1 || st.Steps != 1 {
		t.Fatalf("%+v, want one step, lost", st)
	}

	x.ask()
	x.advance(Time(300 * ms))
	if len(x.batches) != 1 || x.batches[0].GPU != 0 {
		t.Fatalf("batches %+v, want one on the GPU, which is not to blame", x.batches)
	}
	if err := x.s.Complete(x.now, x.batches[0].ID, 0, x.batches[0].Finish); err != nil {
		t.Fatal(err)
	}
	x.take()

	if err := x.end(step, x.now); !errors.Is(err, ErrUnknown) || len(x.steps) > 0 {
		t.Errorf("its end after all: %v, steps %v; want ErrUnknown and none", err, x.steps)
	}
	x.offer(SpareWork{ID: 1, Step: 5 * ms, Weight: 1})
	if len(x.steps) != 1 {
		t.Errorf("offered anew it got %d steps, want 1", len(x.steps))
	}
}

// TestLateStepIsWaitedFor: a step that ends slightly late is counted, and its work continues.
func TestLateStepIsWaitedFor(t *testing.T) {
	x := newSpareRig(t, 1)
	x.offer(SpareWork{ID: 1, Step: 5 * ms, Weight: 1})
	step := x.steps[0]
	x.advance(Time(7 * ms))
	if err := x.end(step, Time(7*ms)); err != nil || len(x.steps) != 1 {
		t.Errorf("%v, %d steps; want the next one", err, len(x.steps))
	}
	if st := x.s.SpareStats(); st.Overrun != 1 || st.Lost != 0 || st.Time != 7*ms {
		t.Errorf("%+v, want one overrun and 7 ms", st)
	}
}

// TestSpareSharesByWeight: works of weights 3 and 1 get GPU time in that proportion, whatever their steps' lengths.
func TestSpareSharesByWeight(t *testing.T) {
	x := newSpareRig(t, 1)
	x.offer(SpareWork{ID: 1, Step: 2 * ms, Weight: 3})
	steps := append([]SpareStep(nil), x.steps...)
	x.offer(SpareWork{ID: 2, Step: 5 * ms, Weight: 1})
	got := map[WorkID]Duration{}
	for len(steps) > 0 && x.now < Time(2000*ms) {
		s := steps[0]
		got[s.Work] += s.End.Sub(s.Start)
		if err := x.end(s, s.End); err != nil {
			t.Fatal(err)
		}
		steps = append(steps[:0], x.steps...)
	}
	if r := float64(got[1]) / float64(got[2]); r < 2.9 || r > 3.1 {
		t.Errorf("GPU time %v, want 3 to 1", got)
	}
}

// TestOfferSpareRefuses: invalid spare work is refused with an error that has name and value.
func TestOfferSpareRefuses(t *testing.T) {
	x := newSpareRig(t, 1)
	for want, w := range map[string]SpareWork{
		"sched: spare work 1: step = 0 ns, want 1 to 10000000":          {ID: 1, Weight: 1},
		"sched: spare work 2: step = 10000001 ns, want 1 to 10000000":   {ID: 2, Step: SpareStepMost + 1, Weight: 1},
		"sched: spare work 3: weight = 0, want above 0 and at most 1e6": {ID: 3, Step: 1},
	} {
		if err := x.s.OfferSpare(0, 0, w); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %q", w, err, want)
		}
	}
	if err := x.s.OfferSpare(0, 5, SpareWork{ID: 1, Step: 1, Weight: 1}); !errors.Is(err, ErrUnknown) {
		t.Errorf("a sub-cluster without GPUs: %v, want ErrUnknown", err)
	}
	for i := range SpareWorkMax {
		if err := x.s.OfferSpare(0, 0, SpareWork{ID: WorkID(i), Step: ms, Weight: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.s.OfferSpare(0, 0, SpareWork{ID: SpareWorkMax, Step: ms, Weight: 1}); err == nil || !strings.Contains(err.Error(), "want at most as many") {
		t.Errorf("more work than a Ranker may know was taken: %v", err)
	}
}

// TestSpareAllocatesNothing: after warm-up neither requests nor steps allocate.
func TestSpareAllocatesNothing(t *testing.T) {
	l := newLoop(t, 20, 40)
	l.offerSpare(t)
	l.run(400_000)
	before := l.s.SpareStats().Steps
	if n := testing.AllocsPerRun(20, func() { l.run(5000) }); n > 0 {
		t.Errorf("%v allocations in 5000 requests", n)
	}
	if l.s.SpareStats().Steps == before {
		t.Error("no step ran")
	}
}

// BenchmarkSpare is BenchmarkRequest with spare work.
func BenchmarkSpare(b *testing.B) {
	for _, size := range []struct{ models, gpus int }{{10, 100}, {100, 1000}} {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", size.models, size.gpus), func(b *testing.B) {
			l := newLoop(b, size.models, size.gpus)
			l.offerSpare(b)
			l.run(size.models * 400)
			b.ReportAllocs()
			b.ResetTimer()
			before := l.s.SpareStats().Steps
			l.run(b.N)
			b.ReportMetric(float64(l.s.SpareStats().Steps-before)/float64(b.N), "steps/request")
		})
	}
}

// TestSpareOfOwners: GPUs run only their owner's steps, and at most as many of a work at a time as it allows.
func TestSpareOfOwners(t *testing.T) {
	x := newSpareRig(t, 4)
	x.offer(SpareWork{ID: 1, Step: ms, Weight: 1, Owner: 7, Most: 1}) // no GPU has that owner yet
	if len(x.steps) != 0 {
		t.Fatalf("steps %v, want none: no GPU has the owner", x.steps)
	}

	r := x.s.rankers[0]
	for g := GPUID(0); g < 3; g++ {
		r.SetSpareOwner(g, 7)
	}
	x.offer(SpareWork{ID: 1, Step: ms, Weight: 1, Owner: 7, Most: 1})
	if len(x.steps) != 1 || x.steps[0].GPU != 2 {
		t.Fatalf("steps %v, want one, on GPU 2", x.steps)
	}

	// Work that is withdrawn and offered again while its step runs still gets no second step.
	x.s.WithdrawSpare(x.now, 0, 1)
	x.offer(SpareWork{ID: 1, Step: ms, Weight: 1, Owner: 7, Most: 1})
	if len(x.steps) != 0 {
		t.Fatalf("steps %v while the only one allowed runs", x.steps)
	}
	x.offer(SpareWork{ID: 2, Step: ms, Weight: 1, Owner: 7})
	if len(x.steps) != 2 {
		t.Fatalf("steps %v, want two of work 2, on the owner's other GPUs", x.steps)
	}

	// A GPU that returns under its number has no owner.
	x.s.RemoveGPU(x.now, 2)
	if err := x.s.AddGPU(x.now, 2, 9); err != nil {
		t.Fatal(err)
	}
	x.take()
	if len(x.steps) != 0 {
		t.Fatalf("steps %v on a GPU that has no owner", x.steps)
	}
}

// TestSpareOfOneGPU: pinned work runs on its GPU alone, whichever else idles, and not on one that belongs to another owner.
func TestSpareOfOneGPU(t *testing.T) {
	x := newSpareRig(t, 4)
	x.offer(SpareWork{ID: 1, Step: ms, Weight: 1, Pinned: true, GPU: 1})
	if len(x.steps) != 1 || x.steps[0].GPU != 1 {
		t.Fatalf("steps %v, want one, on GPU 1", x.steps)
	}
	x.offer(SpareWork{ID: 2, Step: ms, Weight: 1, Most: 1})
	if len(x.steps) != 1 || x.steps[0].Work != 2 || x.steps[0].GPU != 3 {
		t.Fatalf("steps %v, want one of work 2, on GPU 3", x.steps)
	}
	x.offer(SpareWork{ID: 3, Step: ms, Weight: 1, Owner: 7, Pinned: true, GPU: 0})
	if len(x.steps) != 0 {
		t.Fatalf("steps %v, want none: GPU 0 has another owner", x.steps)
	}
}

// TestShorterSpareStepsGoOn: work with steps that fit runs while another work's steps are too long for the requests.
func TestShorterSpareStepsGoOn(t *testing.T) {
	x := newSpareRig(t, 2)
	if err := x.s.AddModel(x.now, 1, Model{Profile: line(t, time.Millisecond, 4*time.Millisecond, 16), SLO: 9 * ms, Rate: 1}); err != nil {
		t.Fatal(err)
	}
	x.offer(SpareWork{ID: 1, Step: 10 * ms, Weight: 1})
	if len(x.steps) != 0 {
		t.Fatalf("steps %v, want none: a pair of requests leaves 3 ms", x.steps)
	}
	if x.offer(SpareWork{ID: 2, Step: 2 * ms, Weight: 1}); len(x.steps) == 0 || x.steps[0].Work != 2 {
		t.Fatalf("steps %v, want work 2's", x.steps)
	}
}
