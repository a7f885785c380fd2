// Package load sends open-loop load and accounts for every request. Arrivals are drawn in advance. Latency counts
// from the intended time of sending, so that a generator or a server that falls behind shows in the numbers (no
// coordinated omission). The package makes no scheduling decisions.
package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/arrivals"
)

// Model is a model's part in the load.
type Model struct {
	Name string
	SLO  time.Duration // budget of each request
}

// A Target answers one request. ctx carries the request's deadline. Infer is called concurrently.
type Target interface {
	Infer(ctx context.Context, model int, seq int) error
}

// Options are the options of a run.
type Options struct {
	Models   []Model
	Plan     []arrivals.Arrival // in order of At; Model is the index in Models
	Classify func(error) string
	// InFlightMax bounds the goroutines. A request beyond it counts as "generator limit" and is never silently
	// omitted. 0: 100,000.
	InFlightMax int
	// Progress, if set, is called about once a second by one goroutine.
	Progress func(elapsed time.Duration, sent, answered, good int64)
}

// Run sends the plan and returns when every request has ended or ctx is canceled. The report then counts requests
// under way and omits those that were not sent.
func Run(ctx context.Context, target Target, o Options) *Report {
	if o.InFlightMax == 0 {
		o.InFlightMax = 100_000
	}
	r := newReport(o.Models, o.Plan, o.Classify)
	stop := r.followProgress(o.Progress)
	defer stop()

	// The bound keeps an unresponsive system from exhausting the generator's memory.
	places := make(chan struct{}, o.InFlightMax)
	var wg sync.WaitGroup
	r.start = time.Now()
	for seq, a := range o.Plan {
		due := r.start.Add(a.At)
		if !sleepUntil(ctx, due) {
			break
		}

		// Do not hide a late generator: the report has its lag, and latency counts from due.
		r.noteLag(time.Since(due))
		r.sent.Add(1)

		select {
		case places <- struct{}{}:
		default:
			r.countEnd(int(a.Model), due, 0, errLimit)
			continue
		}

		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-places }()
			r.sendOne(ctx, target, a, seq, due)
		}()
	}

	// Goodput is per second of sending, without the wait for the last answers.
	r.elapsed = time.Since(r.start)
	wg.Wait()
	return r
}

// sendOne sends a request and counts how it ended.
func (r *Report) sendOne(ctx context.Context, target Target, a arrivals.Arrival, seq int, due time.Time) {
	// The deadline counts from the intended time, so a late start shortens the budget.
	slo := r.Models[a.Model].SLO
	rctx, cancel := context.WithDeadline(ctx, due.Add(slo))
	err := target.Infer(rctx, int(a.Model), seq)
	cancel()
	r.countEnd(int(a.Model), due, slo, err)
}

// sleepUntil returns false if ctx ends first.
func sleepUntil(ctx context.Context, due time.Time) bool {
	d := time.Until(due)
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// followProgress reports progress until the returned function is called.
func (r *Report) followProgress(progress func(time.Duration, int64, int64, int64)) (stop func()) {
	if progress == nil {
		return func() {}
	}

	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		begin := time.Now()
		for {
			select {
			case <-tick.C:
				progress(time.Since(begin).Round(time.Second), r.sent.Load(), r.answered.Load(), r.good.Load())
			case <-done:
				return
			}
		}
	}()

	return func() { close(done); <-ended }
}

// counters are written by every request's goroutine.
type counters struct {
	sent, answered, good atomic.Int64
	lagMax               atomic.Int64
}

func (c *counters) noteLag(d time.Duration) {
	for {
		// Keep the maximum without a lock, since every request updates it.
		old := c.lagMax.Load()
		if int64(d) <= old || c.lagMax.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}
