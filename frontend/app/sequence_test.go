//go:build linux

package app_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/frontendtest"
)

// tally adds up what its sequences are given; a first step begins at 0.
var tally = frontendtest.Model{Name: "tally", Inputs: grow.Inputs[:1], Outputs: check.Outputs, BatchMax: 4,
	Sequence: `max_sequence_idle_microseconds: 60000000 state [ { input_name: "old" output_name: "new" data_type: TYPE_UINT8 dims: [ 1 ] } ]`,
	Answer: func(r frontendtest.Row) error {
		sum := r.Input("x").Bytes()[0] + r.Input("old").Bytes()[0]
		r.Output("y").Bytes()[0], r.Output("new").Bytes()[0] = sum, sum
		return nil
	}}

// resolveTally is an application whose one stage keeps sequences.
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

// TestAStageKeepsSequences: the frames of a session are the steps of one sequence; a frame without a session is one of its own.
func TestAStageKeepsSequences(t *testing.T) {
	g, err := resolveTally(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := awaitModels(t, frontendtest.Start(t, tally), "tally")
	a, err := app.New(client, g, app.Options{Hooks: map[string]app.NewHook{"list": func(*app.Step) (app.Hook, error) {
		return func(_ context.Context, c *app.Call) error { c.Out[0] = app.Value{}; return nil }, nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()

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

	// Which element of a list would be whose next step?
	if _, err := resolveTally(func(s *graph.Stage) { s.Each, s.Takes[0].Tensor = "all", "all" }); err == nil || !strings.Contains(err.Error(), "keeps sequences, of which a frame is one step") {
		t.Errorf("a sequence for each element of a list: %v", err)
	}
}
