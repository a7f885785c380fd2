package worker

import (
	"context"
	"math"
	"sync"
	"time"

	"downbeat.dev/backend/device"
)

// Offered is the result of frames at a rate.
type Offered struct {
	PerSecond []int           // frames that ended, by second since the first arrival
	Took      []time.Duration // by frame that ended within the span, unordered
}

// Offer sends frames evenly for span and counts those that end within it. It returns when all have ended or were
// abandoned at its end.
func (w *Worker) Offer(ctx context.Context, fps float64, span time.Duration) (Offered, error) {
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	t := &offered{began: time.Now(), Offered: Offered{PerSecond: make([]int, int(span/time.Second))}}

	period := time.Duration(float64(time.Second) / fps)
	for at := time.Duration(0); at < span; at += period {
		select {
		case <-time.After(time.Until(t.began.Add(at))):
		case <-ctx.Done():
			at = span
			continue
		}
		t.frames.Go(func() { t.countOffered(at, w.runFrame(ctx)) })
	}
	t.frames.Wait()
	return t.Offered, t.failed
}

// Saturate runs frames for span, as many at once as there are executors, and returns the rate of ended frames: the
// rate that the worker sustains.
func (w *Worker) Saturate(ctx context.Context, span time.Duration) (fps float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	t := &offered{began: time.Now(), Offered: Offered{PerSecond: make([]int, int(math.Ceil(span.Seconds())))}}
	for range w.all {
		t.frames.Go(func() {
			for ctx.Err() == nil {
				t.countOffered(time.Since(t.began), w.runFrame(ctx))
			}
		})
	}
	t.frames.Wait()
	return float64(len(t.Took)) / span.Seconds(), t.failed
}

// offered collects the ends of frames, each from its own goroutine.
type offered struct {
	Offered

	began  time.Time
	frames sync.WaitGroup
	mu     sync.Mutex
	failed error // the first error; guarded by mu
}

// countOffered counts a frame that arrived at a time and has ended now. A frame abandoned at the end of the span does
// not count.
func (t *offered) countOffered(came time.Duration, err error) {
	now := time.Since(t.began)

	t.mu.Lock()
	defer t.mu.Unlock()

	switch second := int(now / time.Second); {
	case err == context.DeadlineExceeded || second >= len(t.PerSecond):
	case err != nil:
		if t.failed == nil {
			t.failed = err
		}
	default:
		t.PerSecond[second]++
		t.Took = append(t.Took, now-came)
	}
}

// runFrame runs a frame's modules, each with the requests of its fan-out at once.
func (w *Worker) runFrame(ctx context.Context) error {
	ended := make([]chan struct{}, len(w.app.Modules))
	for i := range ended {
		ended[i] = make(chan struct{})
	}

	errs := make([]error, len(w.app.Modules))

	var modules sync.WaitGroup
	for i := range w.app.Modules {
		modules.Go(func() {
			defer close(ended[i])
			for _, before := range w.app.Modules[i].After {
				<-ended[before]
				if errs[i] = errs[before]; errs[i] != nil {
					return
				}
			}
			errs[i] = w.runModule(ctx, i)
		})
	}
	modules.Wait()

	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// runModule runs the requests of one module, each on any free executor.
func (w *Worker) runModule(ctx context.Context, module int) error {
	errs := make(chan error, w.app.Modules[module].FanOut)
	for range cap(errs) {
		go func() { errs <- w.runRequest(ctx, module) }()
	}

	var first error
	for range cap(errs) {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

func (w *Worker) runRequest(ctx context.Context, module int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case l := <-w.free:
		defer func() { w.free <- l }()
		return device.Execute(l.executor, device.Batch{Model: w.models[module], Slot: l.slot, Rows: 1})
	}
}
