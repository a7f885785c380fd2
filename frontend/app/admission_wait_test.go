package app_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend/app"
)

// TestAFrameWaitsForNoDecision: while a session is decided about, which may take a while, the first frame of another one is
// answered within its latency. Its time counts in the next decision.
func TestAFrameWaitsForNoDecision(t *testing.T) {
	asked, decide := make(chan struct{}, 8), make(chan struct{})
	var slow atomic.Bool
	var phase atomic.Int64
	gate := app.NewAdmission(func() graph.Capacity { return graph.Capacity{GPUs: 1, Hop: time.Millisecond} },
		func(_ graph.Capacity, all []graph.Promise) bool {
			phase.Store(int64(all[0].Phase))
			if slow.Load() {
				asked <- struct{}{}
				<-decide
			}
			return true
		})
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{Profiles: tenth(t), Admission: gate})
	s, err := a.Open(t.Context(), app.Session{Rate: 1, Latency: 200 * time.Millisecond, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	before := phase.Load()

	slow.Store(true)
	opened := make(chan error, 1)
	open := func() {
		_, err := a.Open(context.Background(), app.Session{Rate: 1, Lease: time.Hour})
		opened <- err
	}
	go open()
	<-asked
	ran := make(chan error, 1)
	go func() {
		_, err := s.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
		ran <- err
	}()
	select {
	case err := <-ran:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the frame waits for the decision about another session")
	}

	slow.Store(false)
	close(decide)
	if err := <-opened; err != nil {
		t.Error(err)
	}
	if open(); <-opened != nil || phase.Load() == before {
		t.Errorf("the next decision is made with phase %v, as before the first frame", time.Duration(before))
	}
}

// TestARateHasAPeriod: a session whose frames come further apart than any clock counts is refused, because no frame of it
// could be too early.
func TestARateHasAPeriod(t *testing.T) {
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{})
	for _, session := range []app.Session{{Rate: 1e-10}, {Rate: 1e-300}, {Rate: 1, LeastRate: 1e-10}} {
		if _, err := a.Open(t.Context(), session); !errors.Is(err, app.ErrInvalid) {
			t.Errorf("rate %v, least rate %v: %v, want ErrInvalid", session.Rate, session.LeastRate, err)
		}
	}
}
