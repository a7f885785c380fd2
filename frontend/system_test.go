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

// TestSchedulerRestart runs the real scheduler and backend over TCP, removes the scheduler under load and starts
// another at its address. Every request ends once, with an answer or a reason.
func TestSchedulerRestart(t *testing.T) {
	models := map[string]string{"classifier": classifier}
	first, rest := &stage.Stage{}, &stage.Stage{}
	closeAll := func(s *stage.Stage) {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := first.OpenScheduler(engine.Options{Prompt: 0.3}); err != nil {
		t.Fatal(err)
	}
	addr, err := first.Listen("127.0.0.2:0") // other processes of this host are unlikely to take its port before the second scheduler has it
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(rest)
	if err := rest.OpenBackend(models, 1, rdma.Config{}, addr.String()); err != nil {
		t.Fatal(err)
	}
	if err := rest.OpenFrontend(context.Background(), frontend.Options{Scheduler: addr.String(), Reconnect: 20 * time.Second, Grace: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
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
	closeAll(first)
	second := &stage.Stage{}
	defer closeAll(second)
	if err := second.OpenScheduler(engine.Options{Prompt: 0.3}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Listen(addr.String()); err != nil {
		t.Fatal(err)
	}
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
	s, other := &stage.Stage{}, &stage.Stage{}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.OpenScheduler(engine.Options{Prompt: 0.3}); err != nil {
		t.Fatal(err)
	}
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.OpenBackend(map[string]string{"classifier": classifier}, 1, rdma.Config{}, addr.String()); err != nil {
		t.Fatal(err)
	}
	renamed := strings.ReplaceAll(classifier, "classifier", "second")
	if err := other.OpenBackend(map[string]string{"second": renamed}, 1, rdma.Config{}, addr.String()); err != nil {
		t.Fatal(err)
	}
	reconnect := time.Millisecond
	if err := s.OpenFrontend(context.Background(), frontend.Options{Scheduler: addr.String(), Reconnect: reconnect, Grace: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	ready := func() bool { m := s.Client.Model("second", ""); return m != nil && m.Ready }
	waitFor(t, 10*time.Second, ready)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
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
	s, other := &stage.Stage{}, &stage.Stage{}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.OpenScheduler(engine.Options{Prompt: 0.3}); err != nil {
		t.Fatal(err)
	}
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	single := strings.ReplaceAll(classifier, "max_batch_size: 16", "max_batch_size: 1") // so that one GPU cannot take all
	slow := strings.ReplaceAll(single, `string_value: "1"`, `string_value: "3"`)
	if err := s.OpenBackend(map[string]string{"classifier": single}, 1, rdma.Config{}, addr.String()); err != nil {
		t.Fatal(err)
	}
	own := strings.ReplaceAll(slow, "classifier", "second")
	if err := other.OpenBackend(map[string]string{"classifier": slow, "second": own}, 1, rdma.Config{}, addr.String()); err != nil {
		t.Fatal(err)
	}
	if err := s.OpenFrontend(context.Background(), frontend.Options{Scheduler: addr.String(), Grace: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}

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
	if err := other.Close(); err != nil {
		t.Error(err)
	}
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

	s := &stage.Stage{}
	defer s.Close()
	if err := s.OpenScheduler(engine.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Listen(addr); err != nil {
		t.Fatal(err)
	}
	if err := s.OpenBackend(map[string]string{"classifier": classifier}, 1, rdma.Config{}, addr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.AwaitModel(ctx, "classifier"); err != nil {
		t.Error(err)
	}
}
