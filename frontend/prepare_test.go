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

// TestPrepareTimeLearnt shows that a client learns how long hooks take: of requests one after another none is read too
// early. The first, of whose hook nothing is known, is sent after it.
func TestPrepareTimeLearnt(t *testing.T) {
	c := dialSystem(t)
	for i := range 6 {
		// Each takes less than the longest before, so that a busy host makes none late.
		r, err := ask(t, c, 4*time.Second, time.Duration(600-100*i)*time.Millisecond, 0)
		if err != nil || r.Resubmits > 0 {
			t.Errorf("request %d was submitted again %d times, %v", i, r.Resubmits, err)
		}
	}
}

// TestFirstHooksReadNothingTooEarly shows that no backend reads in vain while a model's first hooks run, be they of
// single requests or of a burst, and that a first hook beyond the budget ends with a reason.
func TestFirstHooksReadNothingTooEarly(t *testing.T) {
	s, addr := openSystem(t, engine.Options{Prompt: 1}, map[string]string{"classifier": classifier})
	burst := func(name string, of func(c *frontend.Client, calls []frontend.Call)) {
		openFrontend(t, s, frontend.Options{Scheduler: addr})
		c := s.Client
		calls := make([]frontend.Call, 5)
		for i := range calls {
			in, err := c.NewInput("classifier")
			if err != nil {
				t.Fatal(err)
			}
			defer in.Free()
			calls[i].Request = frontend.Request{Model: "classifier", Input: in, Prepare: func(b []byte) error {
				time.Sleep(30 * time.Millisecond)
				clear(b)
				return nil
			}}
		}
		of(c, calls)
		for i := range calls {
			if r := calls[i].Result; calls[i].Err != nil || r.Resubmits > 0 {
				t.Errorf("%s: request %d was submitted again %d times, %v", name, i, r.Resubmits, calls[i].Err)
			}
			calls[i].Result.Release()
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	burst("all", func(c *frontend.Client, calls []frontend.Call) { c.DoAll(ctx, calls) })
	burst("whole", func(c *frontend.Client, calls []frontend.Call) { _ = c.DoWhole(ctx, calls) })
	if n := s.Engine.Stats().Models[0].Outcomes[model.InputUnavailable]; n > 0 {
		t.Errorf("%d reads were refused", n)
	}

	openFrontend(t, s, frontend.Options{Scheduler: addr})
	if _, err := ask(t, s.Client, 50*time.Millisecond, 200*time.Millisecond, 0); !errors.Is(err, frontend.ErrDropped) {
		t.Errorf("beyond the budget: %v", err)
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
