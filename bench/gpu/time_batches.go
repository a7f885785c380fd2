package gpu

import (
	"context"
	"runtime"
	"time"

	"downbeat.dev/cuda"
)

// A row ends after Rounds batches, or after rowLimitUS of device time with at least roundsMin.
const (
	warmRounds = 20
	roundsMin  = 20
	rowLimitUS = 2e6
)

// timings are the times of a row's batches in µs, on the device and on the host, and the allocations per batch.
type timings struct {
	device, host []float64
	allocs       float64
}

// timeBatches runs batches of n, after a warm-up.
func (c Config) timeBatches(ctx context.Context, b *rig, n int) (t timings, err error) {
	from, err := b.dev.NewEvent()
	if err != nil {
		return t, err
	}
	defer from.Free()

	t.device, t.host = make([]float64, 0, c.Rounds), make([]float64, 0, c.Rounds)
	var before, after runtime.MemStats
	var spent float64
	for i := -min(c.Rounds, warmRounds); i < c.Rounds && (spent < rowLimitUS || len(t.device) < roundsMin); i++ {
		// Count allocations from the end of the warm-up.
		if i == 0 {
			runtime.ReadMemStats(&before)
		}
		took, cpu, err := b.runOnce(n, from, c.Timeout)
		if err != nil {
			return t, err
		}

		if i >= 0 {
			t.device, t.host = append(t.device, took), append(t.host, cpu)
			spent += took
		}
		if ctx.Err() != nil {
			return t, ctx.Err()
		}
	}

	runtime.ReadMemStats(&after)
	t.allocs = float64(after.Mallocs-before.Mallocs) / float64(len(t.device))
	return t, nil
}

// runOnce runs a batch whose tensors are on the device, and returns its device time and the host's time to enqueue
// it.
func (b *rig) runOnce(n int, from *cuda.Event, limit time.Duration) (deviceUS, hostUS float64, err error) {
	start := time.Now()
	b.sub.Reset()
	b.sub.Record(b.stream, from)
	if err := b.model.Enqueue(&b.sub, b.stream, n, b.inputs, b.outputs); err != nil {
		return 0, 0, err
	}

	b.sub.Record(b.stream, b.done)
	if err := b.dev.Submit(&b.sub); err != nil {
		return 0, 0, err
	}

	// Host time ends with the submission: the rest is waiting.
	hostUS = float64(time.Since(start)) / 1e3
	if err := b.dev.WaitFor(limit, b.done); err != nil {
		return 0, 0, err
	}

	if err := b.model.Release(n, nil); err != nil {
		return 0, 0, err
	}

	took, err := b.dev.Elapsed(from, b.done)
	return float64(took) / 1e3, hostUS, err
}
