package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

func TestOutcomes(t *testing.T) {
	var reason atomic.Uint32
	c, s := open(t, func(wire.Submit, []byte) ([]byte, model.Reason) { return nil, model.Reason(reason.Load()) }, frontend.Options{})
	b := input(t, c, 0, 0, 0, 0)
	for _, want := range []struct {
		reason model.Reason
		kind   error
	}{
		{model.DeadlineCannotBeMet, frontend.ErrDropped}, {model.QueueFull, frontend.ErrRejected}, {model.DeadlinePast, frontend.ErrRejected},
		{model.UnknownModel, frontend.ErrRejected}, {model.NoBackend, frontend.ErrUnavailable}, {model.BackendLost, frontend.ErrUnavailable},
		{model.ExecutionFailed, frontend.ErrFailed}, {model.InputUnavailable, frontend.ErrFailed}, {model.Canceled, frontend.ErrCanceled},
	} {
		reason.Store(uint32(want.reason))
		_, err := c.Infer(context.Background(), "double", b)
		var o *frontend.OutcomeError
		if !errors.Is(err, want.kind) || !errors.As(err, &o) || o.Reason != want.reason || o.Local || o.Budget < time.Second || o.Elapsed <= 0 {
			t.Errorf("%v: %v", want.reason, err)
		}
		if got := errors.Is(err, context.DeadlineExceeded); got != (want.reason == model.DeadlineCannotBeMet || want.reason == model.DeadlinePast) {
			t.Errorf("%v: is a deadline: %v", want.reason, got)
		}
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.Infer(context.Background(), "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	s.Outcome(s.Waiting()[0].ID, 200) // a reason of a future version
	if err := <-ended; !errors.Is(err, frontend.ErrFailed) {
		t.Error(err)
	}
}

func TestRefusedHere(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{LiveMax: 1}, double, model.Info{ID: 3, Name: "unserved", Version: "1", Reason: model.Unloaded})
	b := input(t, c, 1, 2, 3, 4)
	other, _ := open(t, doubled, frontend.Options{})
	freed := input(t, c, 1, 2, 3, 4)
	freed.Free()
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	gone, cancel2 := context.WithCancel(context.Background())
	cancel2()
	for name, call := range map[string]struct {
		ctx  context.Context
		r    frontend.Request
		kind error
	}{
		"no model":      {context.Background(), frontend.Request{Model: "nope", Input: b}, frontend.ErrRejected},
		"no version":    {context.Background(), frontend.Request{Model: "double", Version: "9", Input: b}, frontend.ErrRejected},
		"not loaded":    {context.Background(), frontend.Request{Model: "unserved", Input: b}, frontend.ErrUnavailable},
		"no input":      {context.Background(), frontend.Request{Model: "double"}, frontend.ErrInvalid},
		"freed input":   {context.Background(), frontend.Request{Model: "double", Input: freed}, frontend.ErrInvalid},
		"foreign input": {context.Background(), frontend.Request{Model: "double", Input: input(t, other, 1, 2, 3, 4)}, frontend.ErrInvalid},
		"short input":   {context.Background(), frontend.Request{Model: "double", Input: input(t, c, 1)}, frontend.ErrInvalid},
		"short output":  {context.Background(), frontend.Request{Model: "double", Input: b, Output: make([]byte, 3)}, frontend.ErrInvalid},
		"past deadline": {past, frontend.Request{Model: "double", Input: b}, context.DeadlineExceeded},
		"ended context": {gone, frontend.Request{Model: "double", Input: b}, frontend.ErrCanceled},
	} {
		if _, err := c.Do(call.ctx, call.r); !errors.Is(err, call.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := s.Submits(); n != 0 {
		t.Errorf("%d submitted", n)
	}
	s.Hold()
	ended := make(chan error)
	go func() {
		_, err := c.Infer(context.Background(), "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	if _, err := c.Infer(context.Background(), "double", b); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a buffer that a request has: %v", err)
	}
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("over LiveMax: %v", err)
	}
	s.Serve()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := c.Buffer(-1); !errors.Is(err, frontend.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.Buffer(rdma.BufferMax + 1); !errors.Is(err, rdma.ErrTooLarge) {
		t.Error(err)
	}
}

// wait polls for an action of another goroutine.
func wait(t testing.TB, done func() bool) {
	t.Helper()
	waitFor(t, 20*time.Second, done)
}

func TestCancel(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	b := input(t, c, 1, 2, 3, 4)
	s.Hold()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := c.Infer(ctx, "double", b)
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	cancel()
	err := <-ended
	if !errors.Is(err, frontend.ErrCanceled) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	id := s.Waiting()[0].ID
	if got := s.Canceled(); len(got) != 1 || got[0] != id {
		t.Errorf("canceled %v, want %v", got, id)
	}
	// I2, I4: the late answer affects nobody, and the input can no longer be read.
	if err := s.Send(id, []byte{9, 9, 9, 9}); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { return c.Stats().Strays == 1 })
	s.Serve()
	wait(t, func() bool { return c.Stats().Strays == 2 })
	if r, err := c.Infer(context.Background(), "double", b); err != nil || r.Data[0] != 2 {
		t.Errorf("after: %v %v", r.Data, err)
	}
}

// TestNobodyWaitsForever is I1: no answer, no outcome, and no deadline in the context.
func TestNobodyWaitsForever(t *testing.T) {
	quick := double
	quick.SLO = int64(20 * time.Millisecond)
	c, s := open(t, doubled, frontend.Options{Grace: 10 * time.Millisecond}, quick)
	s.Hold()
	b := input(t, c, 1, 2, 3, 4)
	var o *frontend.OutcomeError
	if _, err := c.Infer(context.Background(), "double", b); !errors.Is(err, frontend.ErrDropped) || !errors.As(err, &o) || !o.Local ||
		!strings.Contains(err.Error(), `model "double": dropped: deadline_cannot_be_met (no scheduler answered): budget 20ms, ended after `) {
		t.Error(err)
	}
	err := inShort(func(ctx context.Context) error { _, err := c.Infer(ctx, "double", b); return err })
	if !errors.Is(err, frontend.ErrDropped) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wait(t, func() bool { return len(s.Canceled()) == 2 })
}

// TestAPastDeadlineIsNoSilentScheduler shows that a request whose deadline passed before it was sent does not blame the
// scheduler.
func TestAPastDeadlineIsNoSilentScheduler(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{}, double)
	s.Hold()
	b := input(t, c, 1, 2, 3, 4)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()

	_, err := c.Infer(ctx, "double", b)
	if !errors.Is(err, frontend.ErrRejected) || !strings.Contains(err.Error(), "rejected: deadline_past (before the request was sent)") || len(s.Waiting()) > 0 {
		t.Errorf("%v, and %d requests at the scheduler", err, len(s.Waiting()))
	}
}

// inShort calls ask with little time, and with more if a busy host used up all of it before the request began.
func inShort(ask func(context.Context) error) (err error) {
	for within := 200 * time.Millisecond; within < time.Minute; within *= 4 {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		err = ask(ctx)
		cancel()
		var o *frontend.OutcomeError
		if !errors.As(err, &o) || o.Reason != model.DeadlinePast {
			break
		}
	}
	return err
}

func TestLateAnswer(t *testing.T) {
	quick := double
	quick.SLO = int64(time.Millisecond)
	c, _ := open(t, func(m wire.Submit, in []byte) ([]byte, model.Reason) {
		time.Sleep(5 * time.Millisecond)
		return doubled(m, in)
	}, frontend.Options{Grace: 5 * time.Second}, quick)
	r, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4})
	if err != nil || r.Slack >= 0 || r.Data[1] != 4 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestStrayAnswers(t *testing.T) {
	c, s := open(t, doubled, frontend.Options{})
	b := input(t, c, 1, 2, 3, 4)
	s.Hold()
	ended := make(chan error)
	go func() {
		r, err := c.Infer(context.Background(), "double", b)
		if err == nil && r.Data[0] != 2 {
			err = fmt.Errorf("answer %v", r.Data)
		}
		ended <- err
	}()
	wait(t, func() bool { return len(s.Waiting()) == 1 })
	id := s.Waiting()[0].ID
	for _, stray := range []uint64{0, 1, ^uint64(0), id + 1, id ^ 1<<24, id + 1<<28} {
		if err := s.Send(stray, []byte{0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		s.Outcome(stray, model.QueueFull)
	}
	s.Serve()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Send(id, []byte{0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	wait(t, func() bool { return c.Stats().Strays == 13 })
}

func TestWrongOutputSize(t *testing.T) {
	c, _ := open(t, func(wire.Submit, []byte) ([]byte, model.Reason) { return []byte{1}, 0 }, frontend.Options{})
	if _, err := c.InferCopy(context.Background(), "double", []byte{1, 2, 3, 4}); !errors.Is(err, frontend.ErrFailed) {
		t.Error(err)
	}
}
