package app

import (
	"context"
	"fmt"
	"sync"
	"time"

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
