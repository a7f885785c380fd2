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

// TestAPlanMovesModelsUnderLoad: three real backends over TCP, each with every model. A plan gives each backend two models,
// a second one hands them on, and a rollback hands them back, while all models are asked for: every request is answered.
func TestAPlanMovesModelsUnderLoad(t *testing.T) {
	s := &stage.Stage{}
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
	texts := map[string]string{}
	var names []string
	for i := range 6 {
		names = append(names, fmt.Sprint("m", i))
		texts[names[i]] = strings.ReplaceAll(classifier, `string_value: "5000"`, `string_value: "60000"`)
	}
	for range 3 {
		if err := s.OpenBackend(texts, 1, rdma.Config{}, stage.Dial(addr.String())); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.OpenFrontend(context.Background(), frontend.Options{Scheduler: addr.String(), Grace: 60 * time.Second}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 60*time.Second, func() bool { return len(s.Client.Models()) == len(names) })

	// Each model is asked for all the time, one request after another.
	stop, counts := make(chan struct{}), make([]atomic.Int64, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
				_, err := s.Client.InferCopy(ctx, name, make([]byte, 16))
				cancel()
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				counts[i].Add(1)
			}
		})
	}

	// at is the plan that gives models 2·k and 2·k+1 to the backend k+shift.
	gpus := []string{"emulated/0", "emulated#2/0", "emulated#3/0"}
	at := func(number uint64, shift int) engine.Plan {
		p := engine.Plan{Number: number}
		for i, name := range names {
			p.Models = append(p.Models, engine.PlannedModel{Model: name, Version: "1", GPUs: []string{gpus[(i/2+shift)%3]}})
		}
		return p
	}
	served := func() {
		t.Helper()
		for i := range counts {
			before := counts[i].Load()
			waitFor(t, 60*time.Second, func() bool { return counts[i].Load() >= before+20 || t.Failed() })
		}
	}
	ended := func(state engine.PlanState, shift int) {
		t.Helper()
		var now engine.PlanStatus
		waitFor(t, 120*time.Second, func() bool {
			var err error
			if now, err = s.Engine.PlanStatus(); err != nil {
				t.Fatal(err)
			}
			return now.State == state || t.Failed()
		})
		if len(now.LeftOut) > 0 {
			t.Errorf("left out: %+v", now.LeftOut)
		}
		for k, g := range now.GPUs {
			has := ""
			for _, m := range g.Models {
				has += m.Model + " " + m.State + " "
			}
			first := 2 * ((k - shift + 3) % 3)
			if want := fmt.Sprintf("m%d:1 offered m%d:1 offered ", first, first+1); has != want {
				t.Errorf("%s has %s, want %s", g.GPU, has, want)
			}
		}
		served()
	}

	served()
	for number, shift := range []int{0, 1} {
		if _, err := s.Engine.ApplyPlan(at(uint64(number+1), shift)); err != nil {
			t.Fatal(err)
		}
		ended(engine.PlanApplied, shift)
	}
	if _, err := s.Engine.RollBackPlan(); err != nil {
		t.Fatal(err)
	}
	ended(engine.PlanRolledBack, 0)
	close(stop)
	wait.Wait()
}
