package backend

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
)

// loadCallMost is how long one call of a load may take. Loading a large model takes minutes; a driver that is wedged never
// returns, and the backend would load and unload nothing more, on any GPU.
const loadCallMost = 10 * time.Minute

// errStuck is why a GPU takes neither loads nor batches: an earlier call of its executor has not returned.
var errStuck = errors.New("the GPU is stuck: an earlier call has not returned")

// callWithin calls an executor for a load, and gives the call up after loadCallMost. The GPU is sick until it returns; then
// late, unless nil, undoes what it did. Nobody can end a call, and until it returns the executor gets no other.
func callWithin[T any](g *gpu, call func() (T, error), late func(T)) (result T, err error) {
	if g.stuck.Load() > 0 {
		return result, errStuck
	}

	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := call()
		done <- outcome{r, err}
	}()
	limit := time.NewTimer(g.backend.loadCallMost)
	defer limit.Stop()
	select {
	case o := <-done:
		return o.result, o.err
	case <-limit.C:
	}

	g.stuck.Add(1)
	g.backend.log.Error("GPU is stuck in a load: it takes nothing until the call returns", "gpu", g.name, "waited", g.backend.loadCallMost)
	go func() {
		if o := <-done; o.err == nil && late != nil {
			late(o.result)
		}
		g.stuck.Add(-1)
		g.backend.log.Info("GPU is not stuck any more", "gpu", g.name)
	}()
	return result, fmt.Errorf("a call of the load did not return within %v: %w", g.backend.loadCallMost, errStuck)
}

// unload frees a model's memory, unless the GPU is stuck: then it stays occupied.
func (g *gpu) unload(e device.Executor, m *device.Model) error {
	_, err := callWithin(g, func() (struct{}, error) { return struct{}{}, e.Unload(m) }, nil)
	return err
}
