package backend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// crowded is an executor that has no room for more while full is set, and counts what becomes of updates.
type crowded struct {
	device.Executor
	full                          atomic.Bool
	prepared, switched, discarded atomic.Int64
}

var errFull = errors.New("out of memory")

func (c *crowded) Load(m *device.Model) (device.Footprint, error) {
	if c.full.Load() {
		return device.Footprint{}, errFull
	}
	return c.Executor.Load(m)
}

func (c *crowded) Prepare(m *device.Model, weights *repo.Model) (device.Update, error) {
	if c.full.Load() {
		return device.Update{}, errFull
	}
	c.prepared.Add(1)
	u, err := c.Executor.Prepare(m, weights)
	return device.Update{
		Switch:  func() error { c.switched.Add(1); return u.Switch() },
		Discard: func() error { c.discarded.Add(1); return u.Discard() },
	}, err
}

// crowd puts a crowded executor in front of each GPU's. Nothing may be running yet.
func (r *rig) crowd() (all []*crowded) {
	for i, g := range r.gpus {
		c := &crowded{Executor: r.emus[i]}
		all = append(all, c)
		g.executors = []device.Executor{c}
		route := *g.routeOf(0)
		route.executor = c
		g.setRoute(0, &route)
	}
	return all
}

// TestAnUpdateChangesEveryGPUOrNone: weights change in place on all GPUs of a backend, or on none, and the error names the
// GPU that failed. One GPU does not hold the model before: it does not answer with other weights than the first either.
func TestAnUpdateChangesEveryGPUOrNone(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 3, alpha: 100 * time.Microsecond, batchMax: 2})
	all := r.crowd()
	r.config.Find = (&shelf{models: map[string]*device.Model{"m": r.model}}).find
	if err := r.unloadFrom(t.Context(), change{gpu: r.gpus[1]}); err != nil {
		t.Fatal(err)
	}
	all[2].full.Store(true)
	stop := r.keepServing(0, 1000)
	if err := r.LoadModel(t.Context(), "m", "1"); !errors.Is(err, errFull) || !strings.Contains(err.Error(), "emulated 2") {
		t.Errorf("an update without room on the last GPU: %v", err)
	}
	if c := all[0]; c.prepared.Load() != 1 || c.discarded.Load() != 1 || c.switched.Load() != 0 {
		t.Errorf("GPU 0: %d prepared, %d discarded, %d switched", c.prepared.Load(), c.discarded.Load(), c.switched.Load())
	}
	if r.gpus[0].routeOf(0) == nil || r.gpus[1].routeOf(0) != nil || r.gpus[2].routeOf(0) == nil {
		t.Error("a GPU does not have what it had before")
	}

	all[2].full.Store(false)
	if err := r.LoadModel(t.Context(), "m", "1"); err != nil {
		t.Fatal(err)
	}
	if a, b := all[0].switched.Load(), all[2].switched.Load(); a != 1 || b != 1 {
		t.Errorf("the GPUs have switched %d and %d times", a, b)
	}
	if n := stop(); n < 1 {
		t.Error("nothing was served meanwhile")
	}
	r.runOne(r.model, 1, 1)
}

// TestOtherShapesReplaceAModelOnEveryGPUOrNone: with a batch that does not end on one GPU, the old model stays on both,
// and takes batches again.
func TestOtherShapesReplaceAModelOnEveryGPUOrNone(t *testing.T) {
	for _, input := range []string{"image", "text"} { // the new model fits the old one's requests, or does not
		r := newRig(t, rigOptions{gpus: 2, alpha: time.Second, batchMax: 1, plain: true})
		next := devicetest.Emulated(t, "m", 1, time.Millisecond, 0, []model.Tensor{{Name: input, Datatype: "UINT8", Shape: []int64{40, 3}}},
			[]model.Tensor{tensor("scores", "FP32", 10), tensor("class", "INT64", 1)})
		next.Source.Outputs = slices.Clone(next.Source.Outputs)
		next.Source.Outputs[0].Labels = []string{"car"} // other settings, so it is loaded beside the old one
		r.config.Find = (&shelf{models: map[string]*device.Model{"m": next}}).find

		// GPU 0 would be empty at once, and GPU 1 is busy.
		r.gpus[1].mu.Lock()
		r.gpus[1].routeOf(0).live++
		r.gpus[1].mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := r.LoadModel(ctx, "m", "1"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "emulated 1") {
			t.Errorf("%s: replaced while a batch is under way: %v", input, err)
		}
		for i, g := range r.gpus {
			if g.routeOf(0).model != r.model || g.routeOf(0).leaving != nil {
				t.Errorf("%s: GPU %d does not serve the old model", input, i)
			}
		}
		if e := r.modelEntries()[0]; e.model != r.model {
			t.Errorf("%s: the scheduler is told of the new model", input)
		}

		r.gpus[1].mu.Lock()
		r.gpus[1].routeOf(0).leaveRoute()
		r.gpus[1].mu.Unlock()
		if err := r.LoadModel(t.Context(), "m", "1"); err != nil {
			t.Fatal(err)
		}
		r.runOne(next, 0, 1)
		r.runOne(next, 1, 2)
	}
}
