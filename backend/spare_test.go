package backend

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/wire"
)

// waitUntil waits for a condition that may take a while on a loaded host.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	until := time.Now().Add(30 * time.Second)
	for ; !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestSpareStepsRunAsOrdered shows that offers are announced, also to later sessions, and that an order runs one step
// and is answered once.
func TestSpareStepsRunAsOrdered(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 2, alpha: time.Microsecond})
	ran := make(chan time.Duration, 8)
	w := r.NewSpareWork("learn m", func(limit time.Duration) func() { ran <- limit; return nil })
	w.Offer(2*time.Millisecond, 3) // the only work: its weight is 1
	r.Link(false, nil)
	r.Link(true, nil)

	want := wire.SpareOffer{Name: "learn m", Step: 2e6, Weight: 1}
	if offers, _ := r.sched.spareState(); len(offers) != 2 || offers[0] != want || offers[1] != want {
		t.Fatalf("offers %+v, want %+v twice", offers, want)
	}

	// Invalid orders are not answered.
	r.Spare([]wire.SpareStart{{Number: 7, GPU: 1, Step: 2e6}, {Number: 8, Work: 1}, {Number: 9, GPU: 2}})
	if limit := <-ran; limit != 2*time.Millisecond {
		t.Errorf("the step may take %v, want 2 ms", limit)
	}
	waitUntil(t, "the step's end is told", func() bool {
		_, ends := r.sched.spareState()
		return len(ends) == 1 && ends[0].Number == 7
	})
}

// TestSpareStepThatHangsKeepsNobody shows that batches run beside a hanging step, that later orders do not run, and
// that its late end causes a new offer.
func TestSpareStepThatHangsKeepsNobody(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Microsecond})
	release := make(chan struct{})
	w := r.NewSpareWork("learn m", func(time.Duration) func() { <-release; return nil })
	w.Offer(time.Millisecond, 1)
	r.Spare([]wire.SpareStart{{Number: 1, Step: 1e6}})
	r.Spare([]wire.SpareStart{{Number: 2, Step: 1e6}})
	e, inputs := r.batch(1, 1)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}

	time.Sleep(2 * time.Millisecond) // longer than a step may take
	close(release)
	waitUntil(t, "the late step's end and the new offer", func() bool {
		offers, ends := r.sched.spareState()
		return len(ends) == 2 && ends[0].Number == 1 && ends[1].Number == 2 && len(offers) == 2
	})
}

// TestAStepThatBeginsMuchLaterKeepsNobody shows that a backend closes before an ordered step has begun, and without it.
func TestAStepThatBeginsMuchLaterKeepsNobody(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Microsecond})
	var ran atomic.Bool
	w := r.NewSpareWork("learn m", func(time.Duration) func() { ran.Store(true); return nil })
	w.Offer(time.Millisecond, 1)
	r.Spare([]wire.SpareStart{{Number: 1, Step: 1e6, Start: int64(time.Hour)}})
	waitUntil(t, "the order is taken", func() bool { return len(w.orders) == 0 })

	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.spareLoops.Wait()
	if ran.Load() {
		t.Error("the step ran an hour early")
	}
}

// TestAStepThatBeginsLateIsOfferedAnew: the scheduler expects a step's end by when it should have begun, and may have given
// up a short one that began late.
func TestAStepThatBeginsLateIsOfferedAnew(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Microsecond})
	w := r.NewSpareWork("learn m", func(time.Duration) func() { return nil })
	w.Offer(10*time.Second, 1)

	// The first is in time and has no further offer, or there would be three.
	r.Spare([]wire.SpareStart{{Number: 1, Step: int64(10 * time.Second)}})
	waitUntil(t, "the first step's end", func() bool { _, ends := r.sched.spareState(); return len(ends) == 1 })
	r.Spare([]wire.SpareStart{{Number: 2, Step: int64(10 * time.Second), Start: -int64(11 * time.Second)}})
	waitUntil(t, "the second step's end and the new offer", func() bool {
		offers, ends := r.sched.spareState()
		return len(ends) == 2 && len(offers) == 2
	})
}

// TestWorksAreWeighedByTheirValues: a work that is worth more lowers the weight of another, which is told again, but not while
// its step runs: an offer would resume it if the scheduler had suspended it for that step.
func TestWorksAreWeighedByTheirValues(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Microsecond})
	r.WeighSpareWork(func(values []float64) (weights []float64) {
		for _, v := range values {
			weights = append(weights, max(1.0/16, v/slices.Max(values)))
		}
		return weights
	})
	release := make(chan struct{})
	little := r.NewSpareWork("little", func(time.Duration) func() { <-release; return nil })
	much := r.NewSpareWork("much", func(time.Duration) func() { return nil })
	told := func() (all []float64) { // of each offer, the work's number and its weight
		offers, _ := r.sched.spareState()
		for _, o := range offers {
			all = append(all, float64(o.Work), o.Weight)
		}
		return all
	}

	little.Offer(time.Millisecond, 10)
	r.Spare([]wire.SpareStart{{Number: 1, Step: int64(time.Hour)}})
	waitUntil(t, "the step runs", func() bool {
		little.mu.Lock()
		defer little.mu.Unlock()
		return little.busy
	})
	much.Offer(time.Millisecond, 20)
	want := []float64{0, 1, 1, 1}
	if got := told(); !slices.Equal(got, want) {
		t.Fatalf("offers %v during the step, want %v", got, want)
	}
	close(release)
	want = append(want, 0, 0.5)
	waitUntil(t, "the weight after the step", func() bool { return slices.Equal(told(), want) })

	// Without a step it is told at once, and a small change is not told.
	much.Offer(time.Millisecond, 22)
	much.Offer(time.Millisecond, 1e9)
	much.Withdraw()
	want = append(want, 1, 1, 0, 1.0/16, 1, 1, 0, 1, 1, 0)
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("offers %v, want %v", got, want)
	}
}

// school is an executor whose device trains, if it has memory for it.
type school struct {
	device.Executor
	err error
}

type lesson struct{ train.Stepper }

func (s school) NewTrainer(train.Net, train.Options) (train.Stepper, error) {
	if s.err != nil {
		return nil, s.err
	}
	return lesson{}, nil
}

// TestTheLastGPUThatCanTrains: of several GPUs the last one with memory for a trainer trains, and the work's steps are asked
// for there.
func TestTheLastGPUThatCanTrains(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 4, alpha: time.Microsecond})
	full := errors.New("out of memory")
	for i, err := range []error{nil, nil, full} { // the last GPU trains nothing at all
		r.gpus[i].executors = []device.Executor{school{r.emus[i], err}}
	}
	trainer, gpu, err := r.NewTrainer(train.Net{Name: "m"}, train.Options{})
	if _, ok := trainer.(lesson); !ok || gpu != 1 || err != nil {
		t.Fatalf("%T on GPU %d, %v", trainer, gpu, err)
	}

	w := r.NewSpareWork("learn m", func(time.Duration) func() { return nil })
	w.PinTo(gpu)
	w.Offer(time.Millisecond, 1)
	if offers, _ := r.sched.spareState(); len(offers) != 1 || offers[0].GPU != 2 {
		t.Errorf("offers %+v, want one of the second GPU", offers)
	}
}

// TestEachOrderOfAStepIsAnswered: an order that arrives just as the step before ends runs, or its end is told with that of the
// other: the scheduler waits for one of them.
func TestEachOrderOfAStepIsAnswered(t *testing.T) {
	r := newRig(t, rigOptions{alpha: time.Microsecond})
	w := r.NewSpareWork("learn m", func(time.Duration) func() { return nil })
	w.Offer(time.Millisecond, 1)

	// The second order of a pair comes a little later each time.
	told, pause := uint64(0), atomic.Uint64{}
	for i := range uint64(20_000) {
		r.Spare([]wire.SpareStart{{Number: 2 * i, Step: 1e9}})
		for range i % 500 {
			pause.Add(1)
		}
		r.Spare([]wire.SpareStart{{Number: 2*i + 1, Step: 1e9}})

		for tries := 0; told < 2*i+2 && tries < 1000; tries++ {
			told += r.sched.takeSpareEnds()
			runtime.Gosched()
		}
		waitUntil(t, "the ends of both orders", func() bool {
			told += r.sched.takeSpareEnds()
			return told == 2*i+2
		})
	}
}
