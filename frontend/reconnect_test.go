package frontend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

func TestReconnect(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: time.Minute})
	s.Hold()
	type end struct {
		submitted bool // before the session was lost
		r         frontend.Result
		err       error
	}
	ended := make(chan end, 20)
	begin := func(submitted bool) {
		go func() {
			r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
			ended <- end{submitted, r, err}
		}()
	}
	for range 10 {
		begin(true)
	}
	wait(t, func() bool { return len(s.Waiting()) == 10 })
	s.Lose()
	for range 10 { // these wait for the session
		begin(false)
	}
	wait(t, func() bool { return c.Stats().Live == 20 })
	s.Return(nil) // the scheduler is back before its backends
	if n := s.Submits(); n != 10 {
		t.Errorf("%d submitted before the model is back", n)
	}
	moved := double
	moved.ID = 3 // the new scheduler numbers models differently
	s.Return([]model.Info{moved})
	wait(t, func() bool { return len(s.Waiting()) == 20 })
	for _, m := range s.Waiting() {
		if m.Model != 3 || m.Budget >= double.SLO || m.Budget <= 0 {
			t.Errorf("resubmitted as %+v", m)
		}
	}
	s.Serve()
	for range 20 {
		// A request that becomes live before it waits for the session may find the session back.
		if e := <-ended; e.err != nil || e.r.Resubmits > 1 || e.submitted && e.r.Resubmits == 0 || e.r.Data[3] != 8 {
			t.Errorf("%+v", e)
		}
	}
}

// TestNewsOfOneModelKeepsTheOthers shows that a backend that leaves removes only its own models.
func TestNewsOfOneModelKeepsTheOthers(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: time.Millisecond})
	other := double
	other.Name, other.ID = "other", 7
	s.Return([]model.Info{other})
	other.Ready = false
	s.Return([]model.Info{other})
	time.Sleep(5 * time.Millisecond) // more than Reconnect
	if r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); err != nil || r.Data[3] != 8 {
		t.Errorf("%v, %v", r, err)
	}
	if c.Ready() {
		t.Error("ready, while a model that was just there has no backend")
	}
}

func TestSchedulerStaysAway(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: 50 * time.Millisecond})
	s.Hold()
	ended := make(chan error)
	infer := func() error {
		_, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
		return err
	}
	go func() { ended <- infer() }()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	s.Lose()
	if err := <-ended; !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("submitted before: %v", err)
	}
	if err := infer(); !errors.Is(err, frontend.ErrUnavailable) {
		t.Errorf("asked after: %v", err)
	}
	s.Return(nil)
	go func() { ended <- infer() }()
	if err := <-ended; !errors.Is(err, frontend.ErrUnavailable) && !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("model stays away: %v", err)
	}
}

func TestCloseEndsRequests(t *testing.T) {
	s, err := echo.New([]model.Info{double}, doubled)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, frontend.ErrClosed) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrClosed) {
		t.Errorf("a closed client is asked: %v, want %v", err, frontend.ErrClosed)
	}
}
