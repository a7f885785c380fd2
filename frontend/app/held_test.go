//go:build linux

package app_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/frontendtest"
)

// rowBytes is the size of a result between stages that is worth holding.
const rowBytes = 512 << 10

func row(name string, n int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: model.Uint8, Shape: []int64{n}}
}

// grow makes a large tensor of one byte, and also returns the byte. check compares the large tensor with another byte
// of the frame.
var (
	grow = frontendtest.Model{Name: "grow", BatchMax: 4, Inputs: []model.Tensor{row("x", 1)}, Outputs: []model.Tensor{row("large", rowBytes), row("small", 1)},
		Answer: func(r frontendtest.Row) error {
			x, large := r.Input("x").Bytes()[0], r.Output("large").Bytes()
			for i := range large {
				large[i] = x * byte(i)
			}
			r.Output("small").Bytes()[0] = x
			return nil
		}}
	check = frontendtest.Model{Name: "check", BatchMax: 4, Inputs: []model.Tensor{row("a", 1), row("large", rowBytes)}, Outputs: []model.Tensor{row("y", 1)},
		Answer: func(r frontendtest.Row) error {
			a := r.Input("a").Bytes()[0]
			for i, b := range r.Input("large").Bytes() {
				if b != a*byte(i) {
					return fmt.Errorf("byte %d is %d, want %d", i, b, a*byte(i))
				}
			}
			r.Output("y").Bytes()[0] = a
			return nil
		}}
)

// heldGraph has grow, then a hook, then check, which needs the outputs of both.
func heldGraph(t *testing.T) *graph.Graph {
	t.Helper()
	signatures := map[string]graph.Signature{"grow": {Inputs: grow.Inputs, Outputs: grow.Outputs, SLO: time.Minute}, "check": {Inputs: check.Inputs, Outputs: check.Outputs, SLO: time.Minute}}
	g, err := graph.Resolve(graph.Application{Name: "held", Latency: time.Minute, Inputs: []graph.Tensor{{Tensor: row("in", 1)}}, Outputs: []graph.Output{{Name: "out", Of: "y"}},
		Stages: []graph.Stage{
			{Name: "grow", Model: "grow", Takes: []graph.Flow{{Port: "x", Tensor: "in"}}, Gives: []graph.Flow{{Port: "large", Tensor: "large"}, {Port: "small", Tensor: "small"}}},
			{Name: "between", Hook: "between", Takes: []graph.Flow{{Port: "small", Tensor: "small"}}, Gives: []graph.Flow{{Port: "a", Tensor: "a"}}, Declares: []graph.Tensor{{Tensor: row("a", 1)}}},
			{Name: "check", Model: "check", Takes: []graph.Flow{{Port: "a", Tensor: "a"}, {Port: "large", Tensor: "large"}}, Gives: []graph.Flow{{Port: "y", Tensor: "y"}}},
		}}, func(name, _ string) (graph.Signature, error) { return signatures[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestLargeResultsStayWithTheirBackends shows that frames are answered correctly if results are held, are released
// early enough for the next frames, exceed the budget of held slots, or go through the frontend.
func TestLargeResultsStayWithTheirBackends(t *testing.T) {
	server := frontendtest.Start(t, check)
	server.Join(t, "maker", grow)
	client := awaitModels(t, server, "grow", "check")
	for name, least := range map[string]int{"held": 0, "through the frontend": -1, "smaller than what is held": rowBytes + 1} {
		a := openHeld(t, client, app.Options{HoldBytes: least}, nil)
		var wait sync.WaitGroup
		for worker := range byte(8) {
			wait.Go(func() {
				for i := range byte(20) {
					checkFrame(t, a, worker*20+i)
				}
			})
		}
		wait.Wait()

		s := a.Stats()
		if held := s.Steps[0].Held; least == 0 && held == 0 || least != 0 && held > 0 {
			t.Errorf("%s: of %d frames %d were held", name, s.Frames, held)
		}
		if s.Answered != s.Frames || s.Steps[2].Regained > 0 {
			t.Errorf("%s: %+v: want all answered and nothing regained", name, s)
		}
		a.Close()
	}
}

// TestAFrameOutlivesTheBackendThatHeldItsResult shows that another backend computes a lost result once more.
func TestAFrameOutlivesTheBackendThatHeldItsResult(t *testing.T) {
	server := frontendtest.Start(t, check)
	leave := server.Join(t, "first", grow)
	client := awaitModels(t, server, "grow", "check")

	// The hook runs between the two models, so the backend leaves while it holds the frame's result.
	var a *app.App
	seen, left := uint64(0), false
	a = openHeld(t, client, app.Options{}, func() {
		held := a.Stats().Steps[0].Held
		if held > seen && !left {
			server.Join(t, "second", grow)
			leave()
			left = true
		}
		seen = held
	})
	defer a.Close()
	frames := uint64(0)
	for ; !left || frames < 10; frames++ {
		checkFrame(t, a, byte(frames))
	}
	if s := a.Stats(); s.Answered != frames || s.Steps[2].Regained != 1 {
		t.Errorf("%+v: want %d answered frames, of which one was regained", s, frames)
	}
}

// TestAFrameWhoseResultIsGoneEndsWithItsReason: no other backend serves the model that made the result.
func TestAFrameWhoseResultIsGoneEndsWithItsReason(t *testing.T) {
	server := frontendtest.Start(t, check)
	leave := server.Join(t, "only", grow)
	client := awaitModels(t, server, "grow", "check")
	a := openHeld(t, client, app.Options{}, leave)
	defer a.Close()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := a.Run(ctx, app.Frame{Inputs: [][]byte{{1}}})
	if s := a.Stats(); !errors.Is(err, frontend.ErrUnavailable) || s.Failed != 1 {
		t.Errorf("%v, %+v: want one failed frame, whose result is unavailable", err, s)
	}
}

func awaitModels(t *testing.T, server *frontendtest.Server, names ...string) *frontend.Client {
	t.Helper()
	c := server.Client(t)
	for _, name := range names {
		if _, err := c.AwaitModel(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// openHeld runs heldGraph and calls between from the hook between the models.
func openHeld(t *testing.T, client *frontend.Client, o app.Options, between func()) *app.App {
	t.Helper()
	o.Hooks = map[string]app.NewHook{"between": func(*app.Step) (app.Hook, error) {
		return func(_ context.Context, c *app.Call) error {
			if between != nil {
				between()
			}
			c.Out[0] = app.Value{[]byte{c.In[0][0][0]}}
			return nil
		}, nil
	}}
	a, err := app.New(client, heldGraph(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func checkFrame(t *testing.T, a *app.App, x byte) {
	answer, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{x}}})
	if err != nil {
		t.Errorf("frame %d: %v", x, err)
		return
	}
	if got := answer.Outputs[0][0][0]; got != x {
		t.Errorf("frame %d: answer %d", x, got)
	}
	answer.Release()
}
