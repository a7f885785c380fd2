package frontend_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/internal/echo"
)

// TestOutagesHaveTheirReason shows that a request that expires while there is no scheduler, or while it is silent,
// says so: it was not dropped because of its deadline.
func TestOutagesHaveTheirReason(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{Reconnect: time.Minute})
	short := func() error {
		return inShort(func(ctx context.Context) error {
			_, err := c.InferCopy(ctx, "double", []byte{1, 2, 3, 4})
			return err
		})
	}

	s.Hold()
	if err := short(); !errors.Is(err, frontend.ErrDropped) {
		t.Errorf("the scheduler is there: %v", err)
	}
	s.Lose()
	if err := short(); !errors.Is(err, frontend.ErrUnavailable) || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("the scheduler is lost: %v", err)
	}
}

// mutedLink is a link whose scheduler can be silent.
type mutedLink struct {
	control.FrontendLink
	silent atomic.Int64
}

func (l *mutedLink) Silent() time.Duration { return time.Duration(l.silent.Load()) }

func TestSilentSchedulerIsTheReason(t *testing.T) {
	s, err := echo.New([]model.Info{double}, doubled)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	link := new(mutedLink)
	addr, forget := control.ListenInProcess(func(h wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
		link.FrontendLink, err = s.Open(h, ev)
		return link, err
	}, nil)
	defer forget()
	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	s.Hold()
	link.silent.Store(int64(300 * time.Millisecond))
	err = inShort(func(ctx context.Context) error {
		_, err := c.InferCopy(ctx, "double", []byte{1, 2, 3, 4})
		return err
	})
	if !errors.Is(err, frontend.ErrUnavailable) || !strings.Contains(err.Error(), "not been heard for 300ms") {
		t.Errorf("got %v, want it to tell of the silence", err)
	}
}
