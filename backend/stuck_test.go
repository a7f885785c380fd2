package backend

import (
	"errors"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// wedged is an executor whose loads, or batches, do not return before the test lets them.
type wedged struct {
	device.Executor
	loads, batches chan struct{} // closed: they return; nil: they do at once
	unloaded       chan string
}

func (w *wedged) Load(m *device.Model) (device.Footprint, error) {
	if w.loads != nil {
		<-w.loads
	}
	return w.Executor.Load(m)
}

func (w *wedged) Submit(b device.Batch) error {
	if w.batches != nil {
		<-w.batches
	}
	return w.Executor.Submit(b)
}

func (w *wedged) Unload(m *device.Model) error {
	err := w.Executor.Unload(m)
	w.unloaded <- m.Name
	return err
}

// Capabilities asks for a warm-up.
func (w *wedged) Capabilities() device.Capabilities {
	c := w.Executor.Capabilities()
	c.Passes = 1
	return c
}

// TestAStuckLoadIsGivenUp: a GPU's driver does not return from a load, or from a warm-up. The load fails and says so, the GPU
// takes no batches, and the backend loads on another GPU meanwhile. When the call returns, the GPU serves again, without the
// model's memory.
func TestAStuckLoadIsGivenUp(t *testing.T) {
	for _, what := range []string{"load", "warm-up"} {
		r := newRig(t, rigOptions{gpus: 2, alpha: 100 * time.Microsecond, batchMax: 2})
		r.loadCallMost = 50 * time.Millisecond
		r.stock("new", 100)
		release := make(chan struct{})
		w := &wedged{Executor: r.emus[0], unloaded: make(chan string, 9)}
		if what == "load" {
			w.loads = release
		} else {
			w.batches = release
		}
		r.gpus[0].executors = []device.Executor{w}

		if err := r.LoadModel(t.Context(), "new", ""); !errors.Is(err, errStuck) {
			t.Fatalf("%s: %v, want that the GPU is stuck", what, err)
		}
		if !r.gpus[0].isSick() || r.gpus[1].isSick() {
			t.Errorf("%s: sick are %v and %v", what, r.gpus[0].isSick(), r.gpus[1].isSick())
		}
		if all := r.states(1); len(all) == 0 || all[len(all)-1] != wire.LoadFailed {
			t.Errorf("%s: reports %v, want a failed load", what, all)
		}
		again := time.Now()
		if err := r.LoadModel(t.Context(), "new", ""); !errors.Is(err, errStuck) || time.Since(again) > patience/2 {
			t.Errorf("%s: the next load: %v after %v", what, err, time.Since(again))
		}
		r.placeOne(t.Context(), namedPlacement{wire.Placement{Op: wire.Load, GPU: 1, Model: 1}, r.modelOf(1)})
		if r.gpus[1].routeOf(1) == nil {
			t.Errorf("%s: the other GPU has not loaded the model", what)
		}

		close(release)
		if !until(func() bool { return !r.gpus[0].isSick() }) {
			t.Fatalf("%s: the GPU stays sick", what)
		}
		e, inputs := r.batch(1, 1)
		r.Execute([]wire.Execute{e})
		for id, in := range inputs {
			r.checkOutput(id, in)
		}
		if what == "load" {
			if name := <-w.unloaded; name != "new" {
				t.Errorf("unloaded %s", name)
			}
		}
	}
}
