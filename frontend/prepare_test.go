package frontend_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// dialSystem opens a scheduler that dispatches at once and a backend, and returns a client of them.
func dialSystem(t *testing.T) *frontend.Client {
	t.Helper()
	s, addr := openSystem(t, engine.Options{Prompt: 1}, map[string]string{"classifier": classifier})
	openFrontend(t, s, frontend.Options{Scheduler: addr})
	return s.Client
}

// ask sends one request whose hook takes some time.
func ask(t *testing.T, c *frontend.Client, budget, takes, expected time.Duration) (frontend.Result, error) {
	t.Helper()
	return askWith(t, c, budget, expected, func() { time.Sleep(takes) })
}

// askWith sends one request whose hook waits.
func askWith(t *testing.T, c *frontend.Client, budget, expected time.Duration, wait func()) (frontend.Result, error) {
	t.Helper()
	in, err := c.NewInput("classifier")
	if err != nil {
		t.Error(err)
		return frontend.Result{}, err
	}
	defer in.Free()
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	r, err := c.Do(ctx, frontend.Request{Model: "classifier", Input: in, PrepareTime: expected, Prepare: func(b []byte) error {
		wait()
		clear(b)
		return nil
	}})
	r.Release()
	return r, err
}

// TestPrepareTime runs the real scheduler and backend. With a time that suffices, no input is read before it is there,
// and the scheduler is told of inputs that are there earlier. With one that is too short, reads are refused.
func TestPrepareTime(t *testing.T) {
	const n, budget, generous = 40, 4 * time.Second, 2 * time.Second
	c := dialSystem(t)
	all := func(takes, expected time.Duration) (resubmits int64, longest time.Duration) {
		var sum, most atomic.Int64
		var wait sync.WaitGroup
		for range n {
			wait.Go(func() {
				r, err := ask(t, c, budget, takes, expected)
				if err != nil {
					t.Error(err)
				}
				sum.Add(int64(r.Resubmits))
				for was := most.Load(); was < int64(r.Elapsed) && !most.CompareAndSwap(was, int64(r.Elapsed)); was = most.Load() {
				}
			})
		}
		wait.Wait()
		return sum.Load(), time.Duration(most.Load())
	}

	if again, longest := all(3*time.Millisecond, generous); again != 0 || longest > generous {
		t.Errorf("expected after %v: %d submitted again, the longest took %v", generous, again, longest)
	}

	// The hook takes longer than a busy host may need to dispatch and read.
	if again, _ := all(200*time.Millisecond, time.Nanosecond); again == 0 {
		t.Error("expected at once: no read was refused")
	}
}

// TestPrepareTimeLearnt shows that a client learns how long hooks take: of requests one after another only the first is
// read too early.
func TestPrepareTimeLearnt(t *testing.T) {
	c := dialSystem(t)
	for i := range 6 {
		// Each takes less than the longest before, so that a busy host makes none late.
		r, err := ask(t, c, 4*time.Second, time.Duration(600-100*i)*time.Millisecond, 0)
		if want := i == 0; err != nil || (r.Resubmits > 0) != want {
			t.Errorf("request %d was submitted again %d times, %v", i, r.Resubmits, err)
		}
	}
}

// TestPrepareLate shows that a hook that takes longer than expected is answered by its deadline, and one that takes longer
// than the budget ends with a reason, as does an expectation beyond the budget.
func TestPrepareLate(t *testing.T) {
	s, addr := openSystem(t, engine.Options{Prompt: 1}, map[string]string{"classifier": classifier})
	openFrontend(t, s, frontend.Options{Scheduler: addr})
	c := s.Client

	// The hook is late for the read, however long a busy host takes to begin it.
	readRefused := func() {
		for end := time.Now().Add(10 * time.Second); s.Engine.Stats().Models[0].Outcomes[model.InputUnavailable] == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("no read was refused")
				return
			}
		}
	}
	if r, err := askWith(t, c, 30*time.Second, 5*time.Millisecond, readRefused); err != nil || r.Resubmits != 1 || r.Slack <= 0 {
		t.Errorf("later than expected: %d resubmits, slack %v, %v", r.Resubmits, r.Slack, err)
	}
	for _, expected := range []time.Duration{5 * time.Millisecond, 200 * time.Millisecond, time.Hour} {
		begun := time.Now()
		_, err := ask(t, c, 100*time.Millisecond, 300*time.Millisecond, expected)
		if !errors.Is(err, frontend.ErrDropped) || time.Since(begun) > 3*time.Second {
			t.Errorf("beyond the budget, expected %v: %v after %v", expected, err, time.Since(begun))
		}
	}
	if _, err := ask(t, c, time.Second, 0, -1); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("a negative time: %v", err)
	}
}
