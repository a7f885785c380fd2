package frontend_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/bench/stage"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// planned is a system whose plans move models between three backends, with two models each.
type planned struct {
	*stage.Stage
	t      *testing.T
	names  []string
	counts []atomic.Int64 // answers by model
}

// TestAPlanMovesModelsUnderLoad: three real backends over TCP, each with every model. A plan gives each backend two models,
// a second one hands them on, and a rollback hands them back, while all models are asked for: every request is answered.
func TestAPlanMovesModelsUnderLoad(t *testing.T) {
	s := &planned{Stage: &stage.Stage{}, t: t, counts: make([]atomic.Int64, 6)}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.open()

	// Each model is asked for all the time, one request after another.
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for i := range s.names {
		wait.Go(func() { s.ask(i, stop) })
	}

	s.awaitAnswers()
	for number, shift := range []int{0, 1} {
		if _, err := s.Engine.ApplyPlan(s.plan(uint64(number+1), shift)); err != nil {
			t.Fatal(err)
		}
		s.awaitPlan(engine.PlanApplied, shift)
	}
	if _, err := s.Engine.RollBackPlan(); err != nil {
		t.Fatal(err)
	}
	s.awaitPlan(engine.PlanRolledBack, 0)
	close(stop)
	wait.Wait()
}

func (s *planned) open() {
	if err := s.OpenScheduler(engine.Options{Prompt: 0.3}); err != nil {
		s.t.Fatal(err)
	}
	addr, err := s.Listen("127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	texts := map[string]string{}
	for i := range s.counts {
		s.names = append(s.names, fmt.Sprint("m", i))
		texts[s.names[i]] = strings.ReplaceAll(classifier, `string_value: "5000"`, `string_value: "60000"`)
	}
	for range 3 {
		if err := s.OpenBackend(texts, 1, rdma.Config{}, addr.String()); err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.OpenFrontend(context.Background(), frontend.Options{Scheduler: addr.String(), Grace: 60 * time.Second}); err != nil {
		s.t.Fatal(err)
	}
	waitFor(s.t, 60*time.Second, func() bool { return len(s.Client.Models()) == len(s.names) })
}

// ask asks for a model until stop is closed.
func (s *planned) ask(model int, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
		_, err := s.Client.InferCopy(ctx, s.names[model], make([]byte, 16))
		cancel()
		if err != nil {
			s.t.Errorf("%s: %v", s.names[model], err)
			return
		}
		s.counts[model].Add(1)
	}
}

// plan gives models 2·k and 2·k+1 to the backend k+shift.
func (s *planned) plan(number uint64, shift int) engine.Plan {
	gpus := []string{"emulated/0", "emulated#2/0", "emulated#3/0"}
	p := engine.Plan{Number: number}
	for i, name := range s.names {
		p.Models = append(p.Models, engine.PlannedModel{Model: name, Version: "1", GPUs: []string{gpus[(i/2+shift)%3]}})
	}
	return p
}

// awaitAnswers waits until every model has answered again.
func (s *planned) awaitAnswers() {
	s.t.Helper()
	for i := range s.counts {
		before := s.counts[i].Load()
		waitFor(s.t, 60*time.Second, func() bool { return s.counts[i].Load() >= before+20 || s.t.Failed() })
	}
}

// awaitPlan waits for a plan's end and looks at what each GPU has.
func (s *planned) awaitPlan(state engine.PlanState, shift int) {
	s.t.Helper()
	var now engine.PlanStatus
	waitFor(s.t, 120*time.Second, func() bool {
		var err error
		if now, err = s.Engine.PlanStatus(); err != nil {
			s.t.Fatal(err)
		}
		return now.State == state || s.t.Failed()
	})
	if len(now.LeftOut) > 0 {
		s.t.Errorf("left out: %+v", now.LeftOut)
	}
	for k, g := range now.GPUs {
		has := ""
		for _, m := range g.Models {
			has += m.Model + " " + m.State + " "
		}
		first := 2 * ((k - shift + 3) % 3)
		if want := fmt.Sprintf("m%d:1 offered m%d:1 offered ", first, first+1); has != want {
			s.t.Errorf("%s has %s, want %s", g.GPU, has, want)
		}
	}
	s.awaitAnswers()
}
