package app_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
)

// tenth returns profiles with 10 ms for a batch of one.
func tenth(t *testing.T) graph.Profiles {
	p, err := profile.Linear(4*time.Millisecond, 6*time.Millisecond, 8)
	if err != nil {
		t.Fatal(err)
	}
	return func(int) *profile.Profile { return p }
}

// TestSessionsAreAdmittedByTrial: a GPU with 10 ms a frame has room for some sessions. The next session is refused
// with an offer, and is admitted after another one has left.
func TestSessionsAreAdmittedByTrial(t *testing.T) {
	gate := app.NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: 1, Hop: time.Millisecond} }, sim.Trial)
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{Profiles: tenth(t), Admission: gate})

	ask := app.Session{Rate: 10, Latency: 100 * time.Millisecond, Lease: time.Hour}
	var all []*app.Stream
	var refused *app.RefusedError
	for refused == nil && len(all) < 100 {
		s, err := a.Open(context.Background(), ask)
		if err == nil {
			all = append(all, s)
		} else if !errors.As(err, &refused) {
			t.Fatal(err)
		}
	}
	if refused == nil || len(all) < 3 || len(all) > 20 {
		t.Fatalf("%d sessions got in, then %v; want 3 to 20", len(all), refused)
	}
	if !errors.Is(refused, app.ErrRefused) || refused.OfferRate >= 10 || refused.Why == nil || !strings.Contains(refused.Error(), "10 frames/s within 100ms") {
		t.Errorf("refused with %+v: %v", refused, refused)
	}

	// An offer is admitted.
	if refused.OfferRate > 0 {
		s, err := a.Open(context.Background(), app.Session{Rate: refused.OfferRate, Latency: ask.Latency, Lease: time.Hour})
		if err != nil {
			t.Errorf("the rate that was offered: %v", err)
		} else {
			s.Close()
		}
	}
	all[0].Close()
	if s, err := a.Open(context.Background(), ask); err != nil {
		t.Errorf("one has left, and still %v", err)
	} else {
		s.Close()
	}

	for _, s := range all {
		s.Close()
	}

	// A latency that single requests exceed is refused on an idle cluster, with the offer of a longer one.
	_, err := a.Open(context.Background(), app.Session{Rate: 1, Latency: 5 * time.Millisecond})
	if !errors.As(err, &refused) || refused.OfferLatency < 10*time.Millisecond {
		t.Errorf("%v, want a refusal that offers more than 10 ms", err)
	}
}

// TestAnAppIsClosedWhileASessionIsDecidedAbout: the session that asks gets an error, its promised capacity is free
// again, and no other session opens.
func TestAnAppIsClosedWhileASessionIsDecidedAbout(t *testing.T) {
	asked, decide := make(chan struct{}), make(chan struct{})
	var promises atomic.Int32
	gate := app.NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: 1, Hop: time.Millisecond} },
		func(_ graph.Capacity, all []graph.Promise) bool {
			promises.Store(int32(len(all)))
			asked <- struct{}{}
			<-decide
			return true
		})
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{Profiles: tenth(t), Admission: gate})
	other, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{Profiles: tenth(t), Admission: gate})

	opened := make(chan error, 2)
	try := func(a *app.App) {
		_, err := a.Open(context.Background(), app.Session{Rate: 1, Lease: time.Hour})
		opened <- err
	}
	go try(a)
	<-asked
	closed := make(chan struct{})
	go func() { a.Close(); close(closed) }()
	waitFor(t, func() bool { return a.Sessions() == 0 })
	close(decide)
	<-closed
	if err := <-opened; !errors.Is(err, app.ErrClosed) {
		t.Errorf("its App was closed meanwhile: %v", err)
	}
	if _, err := a.Open(context.Background(), app.Session{Rate: 1}); !errors.Is(err, app.ErrClosed) {
		t.Errorf("its App is closed: %v", err)
	}

	go try(other)
	<-asked
	if err := <-opened; err != nil || promises.Load() != 1 {
		t.Errorf("%v, tried with %d promises, want one's own alone", err, promises.Load())
	}
}

// TestTriggeredSessionsComeTogether shows that sessions that can be triggered get a phase, shared by as many as make
// a batch.
func TestTriggeredSessionsComeTogether(t *testing.T) {
	gate := app.NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: 4, Hop: time.Millisecond} }, sim.Trial)
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{Profiles: tenth(t), Admission: gate})

	phases := map[time.Time]int{}
	now := time.Now().Add(time.Hour)
	for range 8 {
		s, err := a.Open(context.Background(), app.Session{Rate: 10, Latency: 400 * time.Millisecond, Lease: time.Hour, Triggered: true})
		if err != nil {
			t.Fatal(err)
		}
		at := s.NextFrame(now)
		if at.Before(now) || at.Sub(now) > 100*time.Millisecond || !s.NextFrame(at).Equal(at) {
			t.Errorf("the next frame of %v is at %v, want within a period", now, at)
		}
		phases[at]++
	}
	if len(phases) > 4 {
		t.Errorf("8 sessions have %d phases, want groups", len(phases))
	}

	free, err := a.Open(context.Background(), app.Session{Rate: 10, Latency: 400 * time.Millisecond, Lease: time.Hour})
	if err != nil || !free.NextFrame(now).Equal(now) {
		t.Errorf("%v; a session that cannot be triggered is told when to come", err)
	}
}

// TestHurtSessionsAreTold: frames without an answer break a promise, and the session is told so. It is told again
// when the promise is kept again.
func TestHurtSessionsAreTold(t *testing.T) {
	var failing atomic.Bool
	answer := func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		if failing.Load() {
			return nil, model.ExecutionFailed
		}
		return doubled(w, in)
	}
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), answer, app.Options{})
	s, err := a.Open(context.Background(), app.Session{Rate: 1e6, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	run := func(n int) {
		for range n {
			if r, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); err == nil {
				r.Release()
			} else if errors.Is(err, app.ErrTooFast) {
				t.Fatal(err)
			}
		}
	}
	told := func() bool {
		select {
		case <-s.Changed():
			return true
		default:
			return false
		}
	}

	run(100)
	failing.Store(true)
	run(1)
	if told() || s.Standing().Hurt {
		t.Errorf("one frame of 101 is within the promise: %+v", s.Standing())
	}
	run(5)
	if st := s.Standing(); !told() || !st.Hurt || st.Failed != 6 || st.InTime != 100 || st.Frames != 106 {
		t.Errorf("%+v, want a session that is hurt and told", st)
	}
	failing.Store(false)
	run(200)
	if st := s.Standing(); !told() || st.Hurt || st.Recent != 1 {
		t.Errorf("%+v, want a promise that is kept again", st)
	}
	checkCounts(t, a)
}

// TestDroppedStepsAreAskedAgain shows that a step that was dropped at its own deadline is sent once more, with the
// time that the later steps can spare.
func TestDroppedStepsAreAskedAgain(t *testing.T) {
	var dropped atomic.Int32
	var budgets [2]atomic.Int64
	drops := int32(1)
	answer := func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		if n := dropped.Add(1); n <= drops {
			budgets[n-1].Store(w.Budget)
			return nil, model.DeadlineCannotBeMet
		}
		budgets[1].Store(w.Budget)
		return doubled(w, in)
	}
	a, _ := open(t, application("z", ask("first", "double", "in", "y"), ask("last", "other", "y", "z")), answer,
		app.Options{Offsets: []time.Duration{8 * time.Minute, 0}})

	r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Release()
	if dropped.Load() != 3 || budgets[0].Load() > int64(2*time.Minute) {
		t.Errorf("%d requests, the first with %v; want the first again, and the last", dropped.Load(), time.Duration(budgets[0].Load()))
	}

	// The last step has no time to spare, so its frame fails.
	drops = 100
	dropped.Store(0)
	if _, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}}); !errors.Is(err, frontend.ErrDropped) || dropped.Load() != 2 {
		t.Errorf("%v after %d requests, want an end after the second", err, dropped.Load())
	}
	checkCounts(t, a)
}
