package frontend_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// openSystem opens a scheduler and a backend of one GPU over TCP, and closes them with the test. It returns the
// scheduler's address.
func openSystem(t *testing.T, o engine.Options, models map[string]string) (s *stage.Stage, addr string) {
	t.Helper()
	s = newStage(t)
	addr = openScheduler(t, s, o, "127.0.0.1:0")
	openBackend(t, s, models, addr)
	return s, addr
}

// newStage returns a stage without parts, which ends with the test.
func newStage(t *testing.T) *stage.Stage {
	s := &stage.Stage{}
	t.Cleanup(func() { closeStage(t, s) })
	return s
}

func closeStage(t *testing.T, s *stage.Stage) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func openScheduler(t *testing.T, s *stage.Stage, o engine.Options, listen string) (addr string) {
	t.Helper()
	if err := s.OpenScheduler(o); err != nil {
		t.Fatal(err)
	}
	a, err := s.Listen(listen)
	if err != nil {
		t.Fatal(err)
	}
	return a.String()
}

func openBackend(t *testing.T, s *stage.Stage, models map[string]string, scheduler string) {
	t.Helper()
	if err := s.OpenBackend(models, 1, rdma.Config{}, scheduler); err != nil {
		t.Fatal(err)
	}
}

func openFrontend(t *testing.T, s *stage.Stage, o frontend.Options) {
	t.Helper()
	if err := s.OpenFrontend(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

// TestSchedulerRestart runs the real scheduler and backend over TCP, removes the scheduler under load and starts
// another at its address. Every request ends once, with an answer or a reason.
func TestSchedulerRestart(t *testing.T) {
	o := engine.Options{Prompt: 0.3}
	first, second, rest := newStage(t), newStage(t), newStage(t)

	// Other processes of this host are unlikely to take a port of this address before the second scheduler has it.
	addr := openScheduler(t, first, o, "127.0.0.2:0")
	openBackend(t, rest, map[string]string{"classifier": classifier}, addr)
	openFrontend(t, rest, frontend.Options{Scheduler: addr, Reconnect: 20 * time.Second, Grace: 5 * time.Second})

	var n ends
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { n.ask(t, rest.Client, stop) })
	}
	quiet := func(more int64) { // until that many more are answered
		t.Helper()
		from := n.answered.Load()
		waitFor(t, 20*time.Second, func() bool { return n.answered.Load() >= from+more })
	}
	quiet(200)
	closeStage(t, first)
	openScheduler(t, second, o, addr)
	quiet(200)
	close(stop)
	wait.Wait()
	s := rest.Client.Stats()
	if s.Live != 0 || s.Requests != s.Answers+s.Outcomes || n.without.Load() > 20 {
		t.Errorf("%d answered, %d without an output; %+v", n.answered.Load(), n.without.Load(), s)
	}
	t.Logf("%d answered, %d without an output, %d submitted again", n.answered.Load(), n.without.Load(), s.Resubmits)
}

// TestBackendLeavesWithItsModels shows that models of other backends stay, with the real scheduler's announcements.
func TestBackendLeavesWithItsModels(t *testing.T) {
	s, addr := openSystem(t, engine.Options{Prompt: 0.3}, map[string]string{"classifier": classifier})
	other := newStage(t)
	openBackend(t, other, map[string]string{"second": strings.ReplaceAll(classifier, "classifier", "second")}, addr)

	reconnect := time.Millisecond
	openFrontend(t, s, frontend.Options{Scheduler: addr, Reconnect: reconnect, Grace: 5 * time.Second})
	ready := func() bool { m := s.Client.Model("second", ""); return m != nil && m.Ready }
	waitFor(t, 10*time.Second, ready)
	closeStage(t, other)
	waitFor(t, 10*time.Second, func() bool { return !ready() })
	time.Sleep(5 * reconnect)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := s.Client.InferCopy(ctx, "classifier", make([]byte, 16)); err != nil {
		t.Error(err)
	}
}

// TestUnlikeBackendsShareAModel: two real backends over TCP have different repositories and different GPUs. Both
// serve their common model, each serves its own, and when one leaves the other continues.
func TestUnlikeBackendsShareAModel(t *testing.T) {
	single := strings.ReplaceAll(classifier, "max_batch_size: 16", "max_batch_size: 1") // so that one GPU cannot take all
	slow := strings.ReplaceAll(single, `string_value: "1"`, `string_value: "3"`)
	s, addr := openSystem(t, engine.Options{Prompt: 0.3}, map[string]string{"classifier": single})
	other := newStage(t)
	openBackend(t, other, map[string]string{"classifier": slow, "second": strings.ReplaceAll(slow, "classifier", "second")}, addr)
	openFrontend(t, s, frontend.Options{Scheduler: addr, Grace: 5 * time.Second})

	var n ends
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { n.ask(t, s.Client, stop) })
	}
	waitFor(t, 30*time.Second, func() bool {
		st := s.Engine.Stats()
		return len(st.Load) == 2 && len(st.GPUs) == 2 && st.GPUs[0].Batches >= 50 && st.GPUs[1].Batches >= 50
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := s.Client.InferCopy(ctx, "second", make([]byte, 16)); err != nil {
		t.Error(err)
	}
	closeStage(t, other)
	answered := n.answered.Load()
	waitFor(t, 30*time.Second, func() bool { return n.answered.Load() >= answered+100 })
	close(stop)
	wait.Wait()
	if st := s.Client.Stats(); st.Live != 0 || st.Requests != st.Answers+st.Outcomes {
		t.Errorf("%+v", st)
	}
}

// ends counts how requests ended.
type ends struct{ answered, without atomic.Int64 }

// ask calls Infer repeatedly until stop is closed.
func (n *ends) ask(t *testing.T, c *frontend.Client, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, err := c.InferCopy(ctx, "classifier", make([]byte, 16))
		cancel()
		var o *frontend.OutcomeError
		switch {
		case err == nil:
			n.answered.Add(1)
		case errors.As(err, &o):
			n.without.Add(1)
		default:
			t.Error(err)
			return
		}
	}
}

func waitFor(t testing.TB, patience time.Duration, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain", patience)
		}
	}
}

// TestPatientClientComesBeforeItsScheduler shows that a patient client exists without a scheduler, and sends requests
// as soon as there is one. For a client that is not patient a missing scheduler is an error.
func TestPatientClientComesBeforeItsScheduler(t *testing.T) {
	ln, err := control.Listen("127.0.0.2:0") // a port that hardly any other process of this host binds before the scheduler comes
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := frontend.Dial(ctx, frontend.Options{Scheduler: addr}); err == nil || !strings.Contains(err.Error(), "scheduler unavailable") {
		t.Errorf("a client that is not patient, without a scheduler: %v", err)
	}

	c, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: addr, Patient: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Connected() {
		t.Error("connected to nobody")
	}

	s := newStage(t)
	openScheduler(t, s, engine.Options{}, addr)
	openBackend(t, s, map[string]string{"classifier": classifier}, addr)

	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.AwaitModel(ctx, "classifier"); err != nil {
		t.Error(err)
	}
}
