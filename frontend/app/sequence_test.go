//go:build linux

package app_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/frontendtest"
)

// tally adds up the inputs of each sequence; a first step begins at 0.
var tally = frontendtest.Model{Name: "tally", Inputs: grow.Inputs[:1], Outputs: check.Outputs, BatchMax: 4,
	Sequence: `max_sequence_idle_microseconds: 60000000 state [ { input_name: "old" output_name: "new" data_type: TYPE_UINT8 dims: [ 1 ] } ]`,
	Answer: func(r frontendtest.Row) error {
		sum := r.Input("x").Bytes()[0] + r.Input("old").Bytes()[0]
		r.Output("y").Bytes()[0], r.Output("new").Bytes()[0] = sum, sum
		return nil
	}}

// resolveTally returns an application with one stage that keeps sequences.
func resolveTally(change func(*graph.Stage)) (*graph.Graph, error) {
	s := graph.Stage{Name: "tally", Model: "tally", Takes: []graph.Flow{{Port: "x", Tensor: "in"}}, Gives: []graph.Flow{{Port: "y", Tensor: "y"}}}
	if change != nil {
		change(&s)
	}
	return graph.Resolve(graph.Application{Name: "tallies", Latency: time.Minute, Inputs: []graph.Tensor{{Tensor: row("in", 1)}}, Outputs: []graph.Output{{Name: "out", Of: "y"}},
		Stages: []graph.Stage{{Name: "list", Hook: "list", Takes: []graph.Flow{{Port: "in", Tensor: "in"}}, Gives: []graph.Flow{{Port: "all", Tensor: "all"}}, Declares: []graph.Tensor{{Tensor: row("all", 1), Most: 4}}}, s}},
		func(string, string) (graph.Signature, error) {
			return graph.Signature{Inputs: tally.Inputs, Outputs: tally.Outputs, SLO: time.Minute, Sequence: true}, nil
		})
}

// openTally opens that application over a model, which may answer differently from tally.
func openTally(t *testing.T, m frontendtest.Model) *app.App {
	t.Helper()
	g, err := resolveTally(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := awaitModels(t, frontendtest.Start(t, m), "tally")
	a, err := app.New(client, g, app.Options{Hooks: map[string]app.NewHook{"list": func(*app.Step) (app.Hook, error) {
		return func(_ context.Context, c *app.Call) error { c.Out[0] = app.Value{}; return nil }, nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// TestAStageKeepsSequences shows that the frames of a session are the steps of one sequence, and that a frame without
// a session is a sequence of its own.
func TestAStageKeepsSequences(t *testing.T) {
	a := openTally(t, tally)

	var wait sync.WaitGroup
	for x := range byte(4) {
		wait.Go(func() {
			s, err := a.Open(t.Context(), app.Session{Rate: 1e6})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			for n := range byte(20) {
				answer, err := s.Run(t.Context(), app.Frame{Inputs: [][]byte{{x}}})
				if err != nil {
					t.Error(err)
					return
				}
				if got := answer.Outputs[0][0][0]; got != (n+1)*x {
					t.Errorf("session of %d: frame %d: %d, want %d", x, n, got, (n+1)*x)
				}
				answer.Release()
			}
		})
	}
	wait.Wait()
	for range 2 {
		checkFrame(t, a, 7)
	}

	// It is not defined which element of a list is the next step of which sequence.
	if _, err := resolveTally(func(s *graph.Stage) { s.Each, s.Takes[0].Tensor = "all", "all" }); err == nil || !strings.Contains(err.Error(), "keeps sequences, of which a frame is one step") {
		t.Errorf("a sequence for each element of a list: %v", err)
	}
}

// TestAFrameWaitsNoLongerThanItHas: while the previous frame of its session occupies a stage, a frame ends at its
// deadline as dropped, and as canceled when its caller gives up. The state of the session is as if the frame had not
// come.
func TestAFrameWaitsNoLongerThanItHas(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	slow := tally
	slow.Answer = func(r frontendtest.Row) error {
		if r.Input("x").Bytes()[0] == 1 {
			reached <- struct{}{}
			<-release
		}
		return tally.Answer(r)
	}
	a := openTally(t, slow)
	s, err := a.Open(t.Context(), app.Session{Rate: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()

	run := func(ctx context.Context, x byte) (byte, error) {
		answer, err := s.Run(ctx, app.Frame{Inputs: [][]byte{{x}}})
		if err != nil {
			return 0, err
		}
		defer answer.Release()
		return answer.Outputs[0][0][0], nil
	}
	var before sync.WaitGroup
	before.Go(func() {
		if sum, err := run(t.Context(), 1); sum != 1 || err != nil {
			t.Errorf("the frame before: %d, %v; want 1", sum, err)
		}
	})
	<-reached

	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	var of *frontend.OutcomeError
	if _, err := run(late, 2); !errors.As(err, &of) || of.Reason != model.DeadlineCannotBeMet || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `stage "tally": `) ||
		!strings.Contains(err.Error(), "the session's frame before it is still there") {
		t.Errorf("its deadline passed: %v", err)
	}
	gone, giveUp := context.WithCancel(t.Context())
	time.AfterFunc(5*time.Millisecond, giveUp)
	if _, err := run(gone, 4); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its caller gave up: %v", err)
	}

	close(release)
	before.Wait()
	if sum, err := run(t.Context(), 8); sum != 9 || err != nil {
		t.Errorf("the frame after: %d, %v; want 9", sum, err)
	}
}
