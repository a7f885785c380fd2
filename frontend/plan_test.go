package frontend_test

import (
	"context"
	"fmt"
	"slices"
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

// TestAPlanMovesModelsUnderLoad: three real backends over TCP, each with every model. A plan gives each backend two
// models, a second plan passes them on, and a rollback returns them, all under requests for every model. Every
// request is answered.
func TestAPlanMovesModelsUnderLoad(t *testing.T) {
	s := &planned{Stage: &stage.Stage{}, t: t, counts: make([]atomic.Int64, 6)}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.open()
	defer s.askForAll()()

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
}

// TestAnAssignmentIsProposedAndApplied: three real backends have every model, and all models are asked for. The scheduler proposes three
// sub-clusters by the rates that it measures, the proposal is applied as it is, and every request is answered meanwhile.
func TestAnAssignmentIsProposedAndApplied(t *testing.T) {
	s := &planned{Stage: &stage.Stage{}, t: t, counts: make([]atomic.Int64, 6)}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.open()
	defer s.askForAll()()

	// The moves are unlimited and cost nothing: each model is on all GPUs.
	s.awaitAnswers()
	p, err := s.Engine.ProposePlan(engine.PlanOptions{Parts: 3})
	if err != nil || len(p.Assignment) != 3 {
		t.Fatalf("%+v, %v: want three sub-clusters", p, err)
	}
	if _, err := s.Engine.ApplyPlan(p.Plan); err != nil {
		t.Fatal(err)
	}

	all := 0
	now := s.awaitState(engine.PlanApplied)
	for i, c := range p.Assignment {
		slices.Sort(c.Models)
		all += len(c.Models)
		at := slices.IndexFunc(now.GPUs, func(g engine.PlannedGPU) bool { return g.GPU == c.GPUs[0] })
		if want := strings.Join(c.Models, " offered ") + " offered"; at < 0 || len(c.GPUs) != 1 || offeredOn(now.GPUs[at]) != want || c.Demand <= 0 {
			t.Errorf("sub-cluster %d: %+v, want %s on its GPU: %+v", i, c, want, now.GPUs)
		}
	}
	if all != len(s.names) {
		t.Errorf("%d models are assigned, want %d", all, len(s.names))
	}
	s.awaitAnswers()
}

// askForAll asks for each model all the time, one request after another, until the function that it returns is called.
func (s *planned) askForAll() (end func()) {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for i := range s.names {
		wait.Go(func() { s.ask(i, stop) })
	}
	return func() { close(stop); wait.Wait() }
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

// ask requests a model until stop is closed.
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

// plan assigns models 2·k and 2·k+1 to backend k+shift.
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

// awaitPlan waits for the end of a plan and checks the models of each GPU.
func (s *planned) awaitPlan(state engine.PlanState, shift int) {
	s.t.Helper()
	for k, g := range s.awaitState(state).GPUs {
		first := 2 * ((k - shift + 3) % 3)
		if has, want := offeredOn(g), fmt.Sprintf("m%d:1 offered m%d:1 offered", first, first+1); has != want {
			s.t.Errorf("%s has %s, want %s", g.GPU, has, want)
		}
	}
	s.awaitAnswers()
}

func (s *planned) awaitState(state engine.PlanState) (now engine.PlanStatus) {
	s.t.Helper()
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
	return now
}

// offeredOn names a GPU's models, each with its state.
func offeredOn(g engine.PlannedGPU) string {
	var all []string
	for _, m := range g.Models {
		all = append(all, m.Model+" "+m.State)
	}
	return strings.Join(all, " ")
}
