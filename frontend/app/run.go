package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// Frame is the input of one run of an application.
type Frame struct {
	Inputs   [][]byte // in the order of the application's inputs; read until Run returns
	Priority uint8    // of all its requests
}

// Answer is the result of a frame. Release frees its memory.
type Answer struct {
	Outputs []Value // in the order of the application's outputs
	Missing []bool  // by output: an optional stage did not give it
	Elapsed time.Duration
	Slack   time.Duration // from the end to the deadline
	run     *run
}

// Release frees the memory of the outputs, which must not be used afterwards. A second Release does nothing.
func (a *Answer) Release() {
	if a.run != nil {
		a.run.recycle()
		a.run, a.Outputs = nil, nil
	}
}

// run is the state of one frame.
type run struct {
	app      *App
	stream   *Stream // nil: none
	priority uint8
	deadline time.Time
	begun    time.Time
	offsets  []time.Duration // by step
	scale    float64         // of the offsets
	cancel   context.CancelCauseFunc
	wait     sync.WaitGroup

	// A step writes its values and missing, and only steps that start after it read them.
	values  []Value
	missing []bool
	held    [][]*frontend.Held // by tensor and element: it lies at a backend; nil: all of the value is here

	steps []StepTrace // written by each step, read after the last

	mu      sync.Mutex // guards the fields below
	needs   []int      // by step: number of steps that it still waits for
	results []frontend.Result
	err     error
	users   []int               // by step: number of unfinished steps that may read its held outputs
	made    [][]frontend.Result // by step: results of which something is held
	fetched []*frontend.Buffer  // held tensors that had to be fetched
}

// Run answers one frame. The deadline is ctx's, or the application's latency from now. The error names the stage that
// failed. It wraps ErrInvalid or ErrHook, or is the request's *frontend.OutcomeError.
func (a *App) Run(ctx context.Context, f Frame) (*Answer, error) {
	return a.runFrame(ctx, f, a.graph.Latency, nil)
}

func (a *App) runFrame(ctx context.Context, f Frame, latency time.Duration, stream *Stream) (*Answer, error) {
	if err := a.checkFrame(f); err != nil {
		return nil, err
	}

	begun := time.Now()
	r := a.takeRun()
	r.stream, r.priority, r.begun, r.deadline = stream, f.Priority, begun, begun.Add(latency)
	r.offsets = a.offsets
	usual := a.graph.Latency // latency to which the offsets belong

	// Admission gave the session its own offsets, for its own latency.
	if stream != nil && stream.offsets != nil {
		r.offsets, usual = stream.offsets, latency
	}

	// A session's frame may have less time than promised, but not more.
	if d, ok := ctx.Deadline(); ok && (stream == nil || d.Before(r.deadline)) {
		r.deadline = d
	}
	// Offsets belong to a latency; a frame with less time has less for every stage.
	r.scale = min(1, r.deadline.Sub(begun).Seconds()/usual.Seconds())

	for i, in := range f.Inputs {
		r.values[i] = Value{in}
	}

	a.stats.begun.Add(1)
	ctx, r.cancel = context.WithCancelCause(ctx)
	r.startFirst(ctx)

	// Wait for every step, also after a failure, since the run is reused for another frame.
	r.wait.Wait()
	r.cancel(nil)
	a.latest.addFrame(r)

	if r.err != nil {
		a.stats.failed.Add(1)
		err := r.err
		r.recycle()
		return nil, fmt.Errorf("application %q: %w", a.graph.Name, err)
	}
	a.stats.answered.Add(1)
	return r.gatherAnswer(begun), nil
}

// checkFrame compares a frame with the application's inputs.
func (a *App) checkFrame(f Frame) error {
	want := a.graph.Inputs
	if len(f.Inputs) != len(want) {
		return fmt.Errorf("%w: application %q: %d inputs: want %d", ErrInvalid, a.graph.Name, len(f.Inputs), len(want))
	}
	for i := range want {
		t := &want[i]
		if t.Varies() {
			if n, ok := model.CountTexts(f.Inputs[i]); !ok || n != t.RowElements() {
				return fmt.Errorf("%w: application %q: input %q: %d whole texts: want %d", ErrInvalid, a.graph.Name, t.Name, n, t.RowElements())
			}
		} else if len(f.Inputs[i]) != t.RowBytes() {
			return fmt.Errorf("%w: application %q: input %q: %d bytes: want %d", ErrInvalid, a.graph.Name, t.Name, len(f.Inputs[i]), t.RowBytes())
		}
	}
	return nil
}

// takeRun returns a run in its initial state.
func (a *App) takeRun() *run {
	// Reuse runs and their lists: frames come many times a second.
	r, ok := a.frames.Get().(*run)
	if !ok {
		r = &run{app: a, values: make([]Value, len(a.graph.Tensors)), missing: make([]bool, len(a.graph.Tensors)), needs: make([]int, len(a.steps)),
			steps: make([]StepTrace, len(a.steps)), held: make([][]*frontend.Held, len(a.graph.Tensors)),
			users: make([]int, len(a.steps)), made: make([][]frontend.Result, len(a.steps))}
	}

	for j := range a.steps {
		r.needs[j], r.users[j] = len(a.steps[j].After), len(a.steps[j].feeds)
	}
	return r
}

// recycle frees the results and keeps the run for another frame.
func (r *run) recycle() {
	for i := range r.results {
		r.results[i].Release()
	}

	for _, b := range r.fetched {
		b.Free()
	}
	clear(r.fetched)
	clear(r.held)
	clear(r.made)
	r.fetched = r.fetched[:0]

	// Values point into the results, whose memory is free now.
	clear(r.values)
	clear(r.missing)
	clear(r.results)
	r.results, r.err, r.stream, r.cancel = r.results[:0], nil, nil, nil
	r.app.frames.Put(r)
}

// gatherAnswer collects the outputs.
func (r *run) gatherAnswer(begun time.Time) *Answer {
	g := r.app.graph
	end := time.Now()
	a := &Answer{Outputs: make([]Value, len(g.Answer)), Missing: make([]bool, len(g.Answer)), Elapsed: end.Sub(begun), Slack: r.deadline.Sub(end), run: r}
	for i, at := range g.Answer {
		a.Outputs[i], a.Missing[i] = r.values[at], r.missing[at]
	}
	return a
}

// startFirst runs the steps without predecessors. Each continues with the steps that wait for it.
func (r *run) startFirst(ctx context.Context) {
	var first []int
	for j := range r.app.steps {
		if len(r.app.steps[j].After) == 0 {
			first = append(first, j)
		}
	}

	// Add all steps at once, so that Wait cannot return between two steps.
	r.wait.Add(len(r.app.steps))
	r.proceed(ctx, first)
}

// proceed runs the ready steps, the first one on this goroutine, since most graphs are chains.
func (r *run) proceed(ctx context.Context, ready []int) {
	for len(ready) > 0 {
		for _, j := range ready[1:] {
			go r.proceed(ctx, []int{j})
		}

		j := ready[0]
		r.steps[j] = StepTrace{From: time.Since(r.begun)}
		err := r.runStep(ctx, j)
		r.steps[j].To = time.Since(r.begun)

		// Record the end before the next steps begin: they read which values are missing.
		r.endStep(j, err)
		ready = r.release(j)
		r.wait.Done()
	}
}

// release returns the steps whose last dependency was j.
func (r *run) release(j int) (ready []int) {
	var unheld []frontend.Result
	r.mu.Lock()
	defer func() {
		r.mu.Unlock()
		for i := range unheld {
			unheld[i].ReleaseHeld()
		}
	}()
	for _, before := range r.app.steps[j].After {
		// Backends have few slots, so release tensors as soon as no step reads them any more.
		if r.users[before]--; r.users[before] == 0 {
			unheld = append(unheld, r.made[before]...)
		}
	}
	for _, k := range r.app.steps[j].feeds {
		if r.needs[k]--; r.needs[k] == 0 {
			ready = append(ready, k)
		}
	}
	return ready
}

// errSkipped is the end of a step without inputs.
var errSkipped = errors.New("skipped")

// runStep runs a step after the steps that it needs have ended.
func (r *run) runStep(ctx context.Context, j int) error {
	s := &r.app.steps[j]

	// The cause is the failure of another step, if there was one.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, at := range s.In {
		if r.missing[at] {
			return errSkipped // the step is optional, else it could not need an optional tensor
		}
	}

	// A step with state takes a session's frames one by one. The wait may take all the time that the later steps can
	// spare.
	if r.stream != nil && (s.hook != nil || s.Sequence) {
		state := &r.stream.states[j]
		if err := state.takeTurn(ctx, r.deadline.Add(-r.app.rest[j])); err != nil {
			return r.endOfWait(ctx, j, err)
		}
		defer state.endTurn()
	}

	// A request that was dropped at the step's own deadline is sent again with the time that the later steps can
	// spare.
	offset := time.Duration(float64(r.offsets[j]) * r.scale)
	err := r.runUntil(ctx, j, r.deadline.Add(-offset))
	if s.hook == nil && r.app.rest[j] < offset && isDropped(err) && ctx.Err() == nil {
		r.steps[j].Again = true
		err = r.runUntil(ctx, j, r.deadline.Add(-r.app.rest[j]))
	}
	return err
}

// endOfWait returns the error of a step whose turn did not come in time, or whose frame ended meanwhile.
func (r *run) endOfWait(ctx context.Context, j int, err error) error {
	if ctx.Err() != nil && ctx.Err() != context.DeadlineExceeded {
		return err
	}

	err = fmt.Errorf("the session's frame before it is still there: %w", err)
	s := &r.app.steps[j]
	if s.hook != nil {
		return fmt.Errorf("%w: %w", ErrHook, err)
	}
	return &frontend.OutcomeError{Reason: model.DeadlineCannotBeMet, Model: s.Model, Local: true, Cause: err}
}

// runUntil runs a step with a deadline of its own.
func (r *run) runUntil(ctx context.Context, j int, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()

	if r.app.steps[j].hook != nil {
		return r.callHook(ctx, j)
	}
	return r.askStep(ctx, j)
}

// isDropped reports whether a request ended only for lack of time, or because its backend died.
func isDropped(err error) bool {
	var of *frontend.OutcomeError
	if !errors.As(err, &of) {
		return errors.Is(err, context.DeadlineExceeded)
	}

	return of.Reason == model.DeadlineCannotBeMet || of.Reason == model.DeadlinePast || of.Reason == model.BackendLost
}

// endStep counts how a step ended. A failed step ends the frame, unless it is optional.
func (r *run) endStep(j int, err error) {
	s := &r.app.steps[j]
	if err == nil {
		s.counts.answered.Add(1)
		return
	}

	// The later steps see that the outputs of the optional step are missing.
	r.steps[j].End = "failed"
	for _, at := range s.Out {
		if at != graph.Single {
			r.values[at], r.missing[at] = nil, true
		}
	}

	if errors.Is(err, errSkipped) {
		s.counts.skipped.Add(1)
		r.steps[j].End = "skipped"
		return
	}

	// A step that is canceled by another step's failure did not fail.
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		r.steps[j].End = "canceled"
		s.counts.canceled.Add(1)
	case s.Optional:
		s.counts.failed.Add(1)
	default:
		s.counts.failed.Add(1)
		r.err = fmt.Errorf("stage %q: %w", s.Name, err)

		// Cancel the other steps: the frame has failed.
		r.cancel(r.err)
	}
}
