package frontend

import (
	"context"
	"errors"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend/internal/echo"
)

// oneModel is the model of these tests' systems.
var oneModel = model.Info{ID: 1, Name: "m", Ready: true, SLO: time.Minute.Nanoseconds(), BatchMax: 8, Platform: "test",
	Inputs:  []model.Tensor{{Name: "x", Datatype: "UINT8", Shape: []int64{4}}},
	Outputs: []model.Tensor{{Name: "y", Datatype: "UINT8", Shape: []int64{4}}}}

// openEcho opens a system that returns its input, and a client of it.
func openEcho(t *testing.T) (*echo.System, *Client) {
	t.Helper()
	s, err := echo.New([]model.Info{oneModel}, func(_ wire.Submit, in []byte) ([]byte, model.Reason) { return in, model.ReasonNone })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	c, err := Dial(t.Context(), Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

// TestACallBetweenTwoSessionsIsSubmitted: a caller reads the session and is then delayed by its host. Meanwhile that
// session is lost, the next one opens, and live requests are submitted again. The call becomes live after that, and
// must reach the new session.
func TestACallBetweenTwoSessionsIsSubmitted(t *testing.T) {
	s, c := openEcho(t)
	b, err := c.Buffer(4)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	b.busy.Store(true)

	p, _ := c.pending.takeSlot(0)
	r := Request{Model: "m", Input: b}
	p.takeRequest(&r, c.Model("m", ""), 1)
	c.setTimes(p, c.now(), time.Minute)
	p.input = b.offerInput(false)

	epoch := c.session.epoch.Load()
	s.Lose()
	s.Return([]model.Info{oneModel})
	if c.submitIn(p, epoch); s.Submits() != 1 {
		t.Errorf("the new session got %d requests, want 1", s.Submits())
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = c.waitFor(ended, p, b)
		return
	}
	if _, err := c.waitFor(t.Context(), p, b); err != nil {
		t.Error(err)
	}
}

// TestACallIsSparedForASuccessor: a leader that is cut off from its backends reports that it has none. If other
// schedulers stand by, that does not end a request: the next leader gets it, or the same one when the model is ready
// again.
func TestACallIsSparedForASuccessor(t *testing.T) {
	unready := oneModel
	unready.Ready = false

	for name, x := range map[string]struct {
		back  func(*echo.System)
		serve bool
	}{
		"a successor":             {func(s *echo.System) { s.Lose(); s.Return([]model.Info{oneModel}) }, true},
		"the same one":            {func(s *echo.System) { s.Return([]model.Info{oneModel}) }, true},
		"nobody":                  {func(*echo.System) {}, false},
		"only that it is unready": {func(s *echo.System) { s.Return([]model.Info{unready}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := openEcho(t)
			c.standbys = true
			s.Hold()
			ended := make(chan error, 1)
			go func() {
				_, err := c.InferCopy(t.Context(), "m", []byte{1, 2, 3, 4})
				ended <- err
			}()
			for len(s.Waiting()) == 0 {
				time.Sleep(time.Millisecond)
			}
			s.Outcome(s.Waiting()[0].ID, model.NoBackend)

			before := s.Submits()
			x.back(s)
			if again := s.Submits() - before; (again > 0) != x.serve {
				t.Errorf("submitted again %d times", again)
			}
			if x.serve {
				s.Serve()
			}
			if err := <-ended; x.serve && err != nil || !x.serve && !(errors.Is(err, ErrUnavailable) && errors.Is(err, errNoSuccessor)) {
				t.Error(err)
			}
		})
	}
}
