package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/app"
	"downbeat.dev/frontend/internal/echo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is a latency that exceeds any pause of a host.
const long = 10 * time.Minute

func four(name string) model.Tensor {
	return model.Tensor{Name: name, Datatype: model.Uint8, Shape: []int64{4}}
}

// info returns a model with the input x and the output y, four bytes each.
func info(id uint32, name string) model.Info {
	return model.Info{ID: id, Name: name, Version: "1", SLO: int64(long), BatchMax: 8, Ready: true, Platform: "test",
		Inputs: []model.Tensor{four("x")}, Outputs: []model.Tensor{four("y")}}
}

func catalog(name, _ string) (graph.Signature, error) {
	return graph.Signature{Inputs: []model.Tensor{four("x")}, Outputs: []model.Tensor{four("y")}, SLO: long}, nil
}

// ask returns a stage that calls a model.
func ask(name, of, from, to string) graph.Stage {
	return graph.Stage{Name: name, Model: of, Takes: []graph.Flow{{Port: "x", Tensor: from}}, Gives: []graph.Flow{{Port: "y", Tensor: to}}}
}

// split returns a stage whose hook makes as many copies of its input as the input's first byte says.
func split(from, to string, most int) graph.Stage {
	return graph.Stage{Name: "split", Hook: "split", Takes: []graph.Flow{{Port: "x", Tensor: from}}, Gives: []graph.Flow{{Port: to, Tensor: to}},
		Declares: []graph.Tensor{{Tensor: four(to), Most: most, Mean: 1}}}
}

var hooks = map[string]app.NewHook{"split": func(*app.Step) (app.Hook, error) {
	return func(_ context.Context, c *app.Call) error {
		n, _ := c.State.(int)
		c.State = n + 1
		for range int(c.In[0][0][0]) {
			c.Out[0] = append(c.Out[0], []byte{c.In[0][0][0], byte(n), 0, 0})
		}
		return nil
	}, nil
}}

// application returns stages in sequence; its output is the tensor named out.
func application(out string, stages ...graph.Stage) graph.Application {
	return graph.Application{Name: "test", Latency: long, Inputs: []graph.Tensor{{Tensor: four("in")}}, Outputs: []graph.Output{{Name: "out", Of: out}}, Stages: stages}
}

// open runs an application over an echo system with two models, "double" and "other".
func open(t testing.TB, a graph.Application, answer echo.Answer, o app.Options) (*app.App, *echo.System) {
	t.Helper()
	s, err := echo.New([]model.Info{info(7, "double"), info(8, "other")}, answer)
	if err != nil {
		t.Fatal(err)
	}
	client, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})

	g, err := graph.Resolve(a, catalog)
	if err != nil {
		t.Fatal(err)
	}
	if o.Hooks == nil {
		o.Hooks = hooks
	}
	running, err := app.New(client, g, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Close)
	return running, s
}

func doubled(_ wire.Submit, in []byte) ([]byte, model.Reason) {
	out := make([]byte, len(in))
	for i, v := range in {
		out[i] = 2 * v
	}
	return out, model.ReasonNone
}

// checkCounts checks A1: every frame ended once, and each of its steps is counted once.
func checkCounts(t *testing.T, a *app.App) {
	t.Helper()
	s := a.Stats()
	if s.Frames != s.Answered+s.Failed {
		t.Errorf("%d frames, %d answered, %d failed", s.Frames, s.Answered, s.Failed)
	}
	for _, j := range s.Steps {
		if n := j.Answered + j.Failed + j.Canceled + j.Skipped; n != s.Frames {
			t.Errorf("step %s was counted %d times in %d frames: %+v", j.Name, n, s.Frames, j)
		}
	}
}

func TestFramesFanOutAndJoin(t *testing.T) {
	each := ask("each", "other", "parts", "kinds")
	each.Each = "parts"
	a, _ := open(t, application("kinds", ask("first", "double", "in", "y"), split("y", "parts", 100), each), doubled, app.Options{})

	for _, n := range []byte{0, 1, 3, 50} {
		r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{n, 0, 0, 0}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Outputs) != 1 || len(r.Outputs[0]) != 2*int(n) || r.Missing[0] {
			t.Fatalf("%d elements, want %d", len(r.Outputs[0]), 2*n)
		}
		for _, e := range r.Outputs[0] {
			if !bytes.Equal(e, []byte{4 * n, 0, 0, 0}) {
				t.Errorf("element %v, want %d first", e, 4*n)
			}
		}
		r.Release()
		r.Release()
	}
	checkCounts(t, a)
	if s := a.Stats(); s.Steps[2].Requests != 2*54 {
		t.Errorf("%d requests of the last step, want 108", s.Steps[2].Requests)
	}
}

func TestManyFramesAtOnce(t *testing.T) {
	each := ask("each", "other", "parts", "kinds")
	each.Each = "parts"
	second := ask("second", "other", "in", "z")
	second.Optional = true
	stages := []graph.Stage{ask("first", "double", "in", "y"), split("y", "parts", 100), each, second}
	refuse := func(s wire.Submit, in []byte) ([]byte, model.Reason) {
		if in[1] == 7 {
			return nil, model.DeadlineCannotBeMet
		}
		return doubled(s, in)
	}
	a, _ := open(t, application("kinds", stages...), refuse, app.Options{})

	var wait sync.WaitGroup
	for i := range 60 {
		wait.Go(func() {
			bad := byte(0)
			if i%3 == 0 {
				bad = 7
			}
			r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{byte(i % 5), bad, 0, 0}}})
			if bad > 0 {
				if !errors.Is(err, frontend.ErrDropped) || !strings.Contains(err.Error(), `stage "first"`) {
					t.Errorf("error %v, want that the first stage was dropped", err)
				}
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if len(r.Outputs[0]) != 2*(i%5) {
				t.Errorf("%d elements, want %d", len(r.Outputs[0]), 2*(i%5))
			}
			r.Release()
		})
	}
	wait.Wait()
	checkCounts(t, a)
}

// TestADropCancelsSiblings shows that the other branch's request is withdrawn from the scheduler.
func TestADropCancelsSiblings(t *testing.T) {
	waiting, end := make(chan struct{}), make(chan struct{})
	answer := func(s wire.Submit, in []byte) ([]byte, model.Reason) {
		if s.Model == 8 {
			close(waiting)
			<-end
			return in, model.ReasonNone
		}
		<-waiting
		return nil, model.DeadlineCannotBeMet
	}
	a, s := open(t, application("y", ask("dropped", "double", "in", "y"), ask("sibling", "other", "in", "z")), answer, app.Options{})
	defer close(end)

	_, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{make([]byte, 4)}})
	if !errors.Is(err, frontend.ErrDropped) || !strings.Contains(err.Error(), `stage "dropped"`) {
		t.Errorf("error %v, want that a stage was dropped", err)
	}
	if n := len(s.Canceled()); n != 1 {
		t.Errorf("%d requests withdrawn, want the sibling's", n)
	}
	checkCounts(t, a)
	if st := a.Stats().Steps; st[0].Failed != 1 || st[1].Canceled != 1 {
		t.Errorf("%+v, want one failed and one canceled", st)
	}
}

// TestOneElementCancelsTheOthers shows that requests of one stage are also siblings.
func TestOneElementCancelsTheOthers(t *testing.T) {
	end := make(chan struct{})
	var mu sync.Mutex
	asked := 0
	answer := func(s wire.Submit, in []byte) ([]byte, model.Reason) {
		mu.Lock()
		asked++
		first := asked == 1
		mu.Unlock()
		if first || s.ID == 0 {
			return nil, model.QueueFull
		}
		<-end
		return in, model.ReasonNone
	}
	each := ask("each", "other", "parts", "kinds")
	each.Each = "parts"
	a, s := open(t, application("kinds", split("in", "parts", 8), each), answer, app.Options{})
	defer close(end)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := a.Run(ctx, app.Frame{Inputs: [][]byte{{1, 0, 0, 0}}})
		done <- err
	}()
	if err := <-done; !errors.Is(err, frontend.ErrRejected) {
		t.Errorf("error %v, want a refusal", err)
	}
	if len(s.Canceled()) != 0 {
		t.Errorf("%d withdrawn of one request that had ended", len(s.Canceled()))
	}

	// None of eight unanswered requests is left after the caller gives up.
	go func() {
		_, err := a.Run(ctx, app.Frame{Inputs: [][]byte{{8, 0, 0, 0}}})
		done <- err
	}()
	waitFor(t, func() bool { return s.Submits() == 9 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, frontend.ErrCanceled) {
		t.Errorf("error %v, want that the caller gave up", err)
	}
	if len(s.Canceled()) != 8 {
		t.Errorf("%d withdrawn, want 8", len(s.Canceled()))
	}
	checkCounts(t, a)
}

func TestOptionalStagesMayBeMissing(t *testing.T) {
	maybe, behind := ask("maybe", "other", "in", "z"), ask("behind", "double", "z", "out")
	maybe.Optional, behind.Optional = true, true
	answer := func(s wire.Submit, in []byte) ([]byte, model.Reason) {
		if s.Model == 8 {
			return nil, model.ExecutionFailed
		}
		return doubled(s, in)
	}
	description := application("y", ask("must", "double", "in", "y"), maybe, behind)
	description.Outputs = append(description.Outputs, graph.Output{Name: "more", Of: "out"})
	a, _ := open(t, description, answer, app.Options{})

	r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 2, 3, 4}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if !bytes.Equal(r.Outputs[0][0], []byte{2, 4, 6, 8}) || r.Missing[0] || !r.Missing[1] || len(r.Outputs[1]) != 0 {
		t.Errorf("%v, missing %v, want the first output only", r.Outputs, r.Missing)
	}
	checkCounts(t, a)
}

// TestDeadlinesAreOffsetsFromTheFrames shows that an earlier stage leaves time for the later ones, and that the last
// stage has all the remaining time.
func TestDeadlinesAreOffsetsFromTheFrames(t *testing.T) {
	var mu sync.Mutex
	var budgets []time.Duration
	answer := func(s wire.Submit, in []byte) ([]byte, model.Reason) {
		mu.Lock()
		budgets = append(budgets, time.Duration(s.Budget))
		mu.Unlock()
		return doubled(s, in)
	}
	offsets := []time.Duration{8 * time.Minute, 0}
	a, _ := open(t, application("z", ask("first", "double", "in", "y"), ask("last", "other", "y", "z")), answer, app.Options{Offsets: offsets})
	r, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{make([]byte, 4)}})
	if err != nil {
		t.Fatal(err)
	}
	r.Release()

	// The first stage has two minutes. The last stage gets the part that it does not use; its own share would have
	// been eight minutes.
	if budgets[0] > 2*time.Minute || budgets[0] < time.Minute || budgets[1] < 8*time.Minute {
		t.Errorf("budgets %v, want at most 2 min, and more than 8", budgets)
	}

	// For a caller with less time, offsets shrink with the latency.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if r, err = a.Run(ctx, app.Frame{Inputs: [][]byte{make([]byte, 4)}}); err != nil {
		t.Fatal(err)
	}
	r.Release()
	if budgets[2] > time.Minute || budgets[2] < 30*time.Second || budgets[3] < 4*time.Minute {
		t.Errorf("budgets %v of 5 min, want at most 1 min, and more than 4", budgets[2:])
	}
}

func TestHooksAreHeldToWhatTheyDeclare(t *testing.T) {
	for want, hook := range map[string]app.Hook{
		"panic: boom":                    func(context.Context, *app.Call) error { panic("boom") },
		"the hook's own words":           func(context.Context, *app.Call) error { return errors.New("the hook's own words") },
		"10000 elements: want at most 8": func(_ context.Context, c *app.Call) error { c.Out[0] = make(app.Value, 10000); return nil },
		"element 1: 3 bytes: want 4": func(_ context.Context, c *app.Call) error {
			c.Out[0] = app.Value{make([]byte, 4), make([]byte, 3)}
			return nil
		},
		"panic: runtime error: index out of r": func(_ context.Context, c *app.Call) error { c.Out[1] = nil; return nil },
	} {
		own := map[string]app.NewHook{"split": func(*app.Step) (app.Hook, error) { return hook, nil }}
		a, _ := open(t, application("parts", split("in", "parts", 8)), doubled, app.Options{Hooks: own})
		_, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{make([]byte, 4)}})
		if !errors.Is(err, app.ErrHook) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `stage "split"`) {
			t.Errorf("error %v, want one of the hook that says %q", err, want)
		}
		checkCounts(t, a)
	}

	g, err := graph.Resolve(application("parts", split("in", "parts", 8)), catalog)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.New(nil, g, app.Options{}); err == nil || !strings.Contains(err.Error(), `hook "split": not known: want one of crop`) {
		t.Errorf("error %v, want the hooks that there are", err)
	}
}

func TestFramesAreChecked(t *testing.T) {
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), doubled, app.Options{})
	for want, inputs := range map[string][][]byte{
		"0 inputs: want 1":               nil,
		`input "in": 3 bytes: want 4`:    {make([]byte, 3)},
		"2 inputs: want 1":               {make([]byte, 4), nil},
		`input "in": 1000 bytes: want 4`: {make([]byte, 1000)},
	} {
		if _, err := a.Run(context.Background(), app.Frame{Inputs: inputs}); !errors.Is(err, app.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if s := a.Stats(); s.Frames != 0 {
		t.Errorf("%d frames begun of none that could be right", s.Frames)
	}
}

func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited 30 s in vain")
		}
	}
}

// TestAModelChangesWhileASessionRuns: if a model changes its inputs or outputs after the application was checked, a
// frame that calls it ends with that reason. The session continues when the model is as before.
func TestAModelChangesWhileASessionRuns(t *testing.T) {
	var extra atomic.Int32
	a, s := open(t, application("y", ask("first", "double", "in", "y")), func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		out, reason := doubled(w, in)
		return append(out, make([]byte, extra.Load())...), reason
	}, app.Options{})
	stream, err := a.Open(t.Context(), app.Session{Rate: 1e6, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()

	for i, c := range []struct {
		in, out int64
		want    string
	}{
		{4, 4, ""},
		{4, 8, "4 bytes more than its outputs take: the model has changed"},
		{8, 4, "input of 4 bytes: must be 8"},
		{4, 4, ""},
	} {
		m := info(uint32(20+i), "double")
		m.Inputs[0].Shape, m.Outputs[0].Shape = []int64{c.in}, []int64{c.out}
		extra.Store(int32(c.out - 4))
		s.Return([]model.Info{m})
		answer, err := stream.Run(t.Context(), app.Frame{Inputs: [][]byte{{1, 2, 3, 4}}})
		if c.want == "" {
			if err != nil {
				t.Fatalf("inputs of %d bytes, outputs of %d: %v", c.in, c.out, err)
			}
			answer.Release()
		} else if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `stage "first"`) {
			t.Errorf("inputs of %d bytes, outputs of %d: %v, want the stage, and %q", c.in, c.out, err, c.want)
		}
	}
	checkCounts(t, a)
}

// TestAnAppIsClosedWhileAFrameRuns: the frame ends as it would have, and the session accepts no more frames.
func TestAnAppIsClosedWhileAFrameRuns(t *testing.T) {
	reached, answer := make(chan struct{}, 2), make(chan struct{})
	a, _ := open(t, application("y", ask("first", "double", "in", "y")), func(w wire.Submit, in []byte) ([]byte, model.Reason) {
		reached <- struct{}{}
		<-answer
		return doubled(w, in)
	}, app.Options{})
	s, err := a.Open(t.Context(), app.Session{Rate: 1e6, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	var frame sync.WaitGroup
	frame.Go(func() {
		r, err := s.Run(t.Context(), app.Frame{Inputs: [][]byte{{1, 2, 3, 4}}})
		if err != nil || !bytes.Equal(r.Outputs[0][0], []byte{2, 4, 6, 8}) {
			t.Errorf("the frame under way: %v, %v", r, err)
			return
		}
		r.Release()
	})
	<-reached
	a.Close()
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Run(soon, app.Frame{Inputs: [][]byte{{1, 2, 3, 4}}}); !errors.Is(err, app.ErrClosed) {
		t.Errorf("a frame after the App's end: %v", err)
	}
	close(answer)
	frame.Wait()
	checkCounts(t, a)
}

func ExampleApp_Run() {
	s, err := echo.New([]model.Info{info(7, "double")}, doubled)
	if err != nil {
		panic(err)
	}
	client, err := frontend.Dial(context.Background(), frontend.Options{Scheduler: s.Addr})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	defer client.Close()

	g, err := graph.Resolve(application("z", ask("first", "double", "in", "y"), ask("second", "double", "y", "z")), catalog)
	if err != nil {
		panic(err)
	}
	a, err := app.New(client, g, app.Options{})
	if err != nil {
		panic(err)
	}
	defer a.Close()

	answer, err := a.Run(context.Background(), app.Frame{Inputs: [][]byte{{1, 2, 3, 4}}})
	if err != nil {
		panic(err)
	}
	defer answer.Release()
	fmt.Println(answer.Outputs[0][0])
	// Output: [4 8 12 16]
}
