package engine

import (
	"testing"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

func TestOverrunBringsDeadlinesForward(t *testing.T) {
	var o overrun
	if m := o.margin(50e6); m != 0 {
		t.Errorf("margin %d before any batch, want 0", m)
	}
	for i := range 256 {
		o.add(sched.Time(i)*ms, int64(i)*10_000) // up to 2.55 ms late
	}
	if m := o.margin(50e6); m < 2.4e6 || m > 2.6e6 {
		t.Errorf("margin %v, want the 99th percentile, about 2.5 ms", m)
	}
	if m := o.margin(4e6); m != 1e6 {
		t.Errorf("margin %d of a budget of 4 ms, want a quarter", m)
	}
	if m := o.margin(-5); m != 0 {
		t.Errorf("margin %d of a deadline that is past, want 0", m)
	}
	for i := range 512 {
		o.add(sched.Time(1000+i)*ms, -1)
	}
	if m := o.margin(50e6); m != 0 {
		t.Errorf("margin %d after batches that were on time, want 0", m)
	}
	o.setPercentile(o.p99, int64(limits.OverrunLeast))
	if m := o.margin(50e6); m != sched.Time(limits.OverrunLeast) {
		t.Errorf("margin %d, want the least", m)
	}
}

// TestCancelAfterOverruns shows that a request is found in its queue although its deadline was brought forward, by
// another amount than the present one.
func TestCancelAfterOverruns(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()
	p := s.e.parts[0]
	for i := range limits.OverrunTurn {
		p.overrunIn(1).add(sched.Time(100+i)*ms, 3e6)
	}
	f.ask(1, "m", 50*ms)
	for i := range 8 * limits.OverrunTurn {
		p.overrunIn(1).add(sched.Time(1000+i)*ms, 1e6)
	}
	if p.overrunIn(1).p99 != 1e6 {
		t.Fatalf("p99 %d", p.overrunIn(1).p99)
	}
	f.Cancel([]wire.Cancel{{ID: 1}})
	s.ended(1, "canceled")
}

// TestWhatDoesNotRunIsLearned: a backend that measured more than its kind's planned profile does not run batches that
// it cannot end in time. Its GPU is free at once and would get the next batch, and in the end the whole load. Its
// refusals bring deadlines forward; if that would be too much, it is held back.
func TestWhatDoesNotRunIsLearned(t *testing.T) {
	for _, every := range []sched.Time{ms, 3 * ms, 100 * ms} {
		for _, c := range []struct {
			percent int // of the others' times
			held    int
		}{{percent: 100}, {percent: 180}, {percent: 400, held: 1}} {
			s := newStage(t, Options{})
			startUnlike(s, c.percent)
			f := s.frontend()
			asked, before := s.offerFor(f, "m", 1, every, 30*ms, 4000*ms)
			again, after := s.offerFor(f, "m", 10_000, every, 30*ms, 4000*ms)

			held := 0
			for _, g := range s.e.Stats().GPUs {
				if g.Held {
					held++
				}
			}
			t.Logf("every %d ms, %d %%: %d of %d, then %d of %d, %d held back", every/ms, c.percent, before, asked, after, again, held)
			if before*100 < asked*70 || after*100 < again*99 || held != c.held {
				t.Errorf("%d held back, want %d; 99 %% are to be served at last", held, c.held)
			}
		}
	}
}

// startUnlike starts three backends of one kind. The first one measured percent of the others' times.
func startUnlike(s *stage, percent int) {
	startMeasured(s, float64(percent)/100)
	startMeasured(s, 1)
	startMeasured(s, 1)
}

// startMeasured starts a backend of a kind that is planned with slope. It measured by times that, and runs no batch
// that it cannot end in time.
func startMeasured(s *stage, by float64) *emulated {
	h := hello("b", 1, scaled(by), "m")
	h.Details = []wire.GPUDetail{{Kind: "k"}}
	b := s.mustBackend(h)
	b.doubts, b.kind = true, slope
	return b
}

// TestATrialThatDidNotRunShowsNothing: two of four GPUs take twice their measured times, and are held back. Requests
// that come one by one must not all become their trials. Their backends would run none of these trials, because they
// measured more than is planned.
func TestATrialThatDidNotRunShowsNothing(t *testing.T) {
	s := newStage(t, Options{})
	for k := range 4 {
		if k < 2 {
			startMeasured(s, 1.37).profile = scaled(2.8)
		} else {
			startMeasured(s, 1)
		}
	}
	f := s.frontend()
	s.offerFor(f, "m", 1, 2*ms, 60*ms, 4000*ms)

	held := 0
	for _, g := range s.e.Stats().GPUs {
		if g.Held {
			held++
		}
	}
	asked, served := s.offerFor(f, "m", 10_000, 300*ms, 60*ms, 60_000*ms)
	t.Logf("%d held back; one by one, %d of %d served", held, served, asked)
	if held != 2 || served*100 < asked*95 {
		t.Errorf("%d held back, want 2; %d of %d requests were served, want 95 %%", held, served, asked)
	}
}

// TestSeveralHomesFollowTheLatest shows that a service in two homes leaves the room that the home with the later batches
// needs, whichever that is.
func TestSeveralHomesFollowTheLatest(t *testing.T) {
	s := newStage(t, Options{})
	for k := range 2 {
		h := hello("b", 1, slope, "m")
		h.Details = []wire.GPUDetail{{Kind: string(rune('a' + k))}}
		s.mustBackend(h)
	}
	p := s.e.parts[0]
	if p.severalOf(0) == nil {
		t.Fatal("the model has one home")
	}
	for _, x := range []struct {
		sub        uint32
		late, most int64
	}{{1, 3e6, 3e6}, {2, 5e6, 5e6}, {2, 1e6, 3e6}, {1, 0, 1e6}} {
		p.overrunIn(x.sub).setPercentile(x.late, 0)
		if got, want := p.overrunOf(0).p99, x.most; got != want {
			t.Errorf("home %d is %d ns late: the service expects %d, want %d", x.sub, x.late, got, want)
		}
	}
}
