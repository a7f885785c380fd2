package gpu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/accel"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/bench/median"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/rdma"
)

// Throughput is the throughput of a backend's executor with 150 KiB images: copies in, compute and copies out of
// consecutive batches overlap.
type Throughput struct {
	Batch     int     `json:"batch"`
	Pinned    bool    `json:"pinned"`
	Pageable  float64 `json:"pageable_images_per_second"` // the same without pinned memory
	Ratio     float64 `json:"pinned_over_pageable"`
	Alone     float64 `json:"alone_images_per_second"` // one batch at a time, whose rows arrive earlier
	PerSecond float64 `json:"images_per_second"`
	CopyIn    float64 `json:"copy_in_bound"` // images per second of the link alone
	Compute   float64 `json:"compute_bound"`
	Share     float64 `json:"share"` // of the smaller of the two bounds
}

// Pipelined measures a graph on a backend's executor with two batches under way and a third whose rows arrive
// meanwhile. The bounds are its copies in alone and its batches alone, by the device's clock.
func Pipelined(ctx context.Context, dev *cuda.Device, c Config, m *onnx.Model, batch int) (out Throughput, err error) {
	out.Batch = batch

	r, err := c.openRuntime(dev)
	if err != nil {
		return out, err
	}
	defer r.Close()

	b, err := openRig(dev, r, m, batch, c.Precision)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, b.closeRig()) }()

	// Measure the bounds first: they raise the clock rates for the runs that follow.
	if out.CopyIn, out.Compute, err = c.measureBounds(ctx, b, batch); err != nil {
		return out, err
	}
	if out.Alone, _, err = c.measureFlow(ctx, b, batch, 1, false); err != nil {
		return out, err
	}
	if out.Pageable, _, err = c.measureFlow(ctx, b, batch, 2, true); err != nil {
		return out, err
	}
	if out.PerSecond, out.Pinned, err = c.measureFlow(ctx, b, batch, 2, false); err != nil {
		return out, err
	}

	out.Ratio = out.PerSecond / out.Pageable
	out.Share = out.PerSecond / min(out.CopyIn, out.Compute)
	return out, nil
}

// measureBounds returns the rows per second of copies in alone, and of compute alone, by the median batch.
func (c Config) measureBounds(ctx context.Context, b *rig, batch int) (copyIn, compute float64, err error) {
	from, err := b.dev.NewEvent()
	if err != nil {
		return 0, 0, err
	}
	defer from.Free()
	var in, run []float64

	// Copies and batches alternate, so that a drifting clock affects both.
	for range c.Rounds {
		b.sub.Reset()
		b.sub.Record(b.stream, from)
		for i := range b.inputs {
			b.sub.CopyIn(b.stream, b.inputs[i], b.host[i].Bytes())
		}
		b.sub.Record(b.stream, b.done)
		if err := errors.Join(b.dev.Submit(&b.sub), b.dev.WaitFor(c.Timeout, b.done)); err != nil {
			return 0, 0, err
		}

		took, err := b.dev.Elapsed(from, b.done)
		if err != nil {
			return 0, 0, err
		}

		us, _, err := b.runOnce(batch, from, c.Timeout)
		if err = errors.Join(err, ctx.Err()); err != nil {
			return 0, 0, err
		}
		in, run = append(in, float64(took)/1e3), append(run, us)
	}

	return float64(batch) / median.Of(in) * 1e6, float64(batch) / median.Of(run) * 1e6, nil
}

// program is the rig's model as an executor runs it.
type program struct{ *executor.Model }

func (p program) Release(n int) error { return p.Model.Release(n, nil) }

// Footprint returns zero: the rig manages its own memory.
func (p program) Footprint() device.Footprint { return device.Footprint{} }

// Succeed is never called here.
func (p program) Succeed(*device.Model, *repo.Model) (accel.Program, error) {
	return nil, device.ErrShape
}

// Close leaves the model to the rig.
func (p program) Close() error { return nil }

// measureFlow returns the rows per second with this many batches under way, while the next one's rows have arrived,
// and whether all slots were pinned.
func (c Config) measureFlow(ctx context.Context, b *rig, batch, under int, pageable bool) (perSecond float64, pinned bool, err error) {
	m, err := b.layoutModel(batch)
	if err != nil {
		return 0, false, err
	}

	// Slots are memory of a data-plane node, as in a backend: registered, and then pinned.
	node, err := rdma.Open(rdma.Config{Providers: []string{"local"}})
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()

	// One more slot than batches under way: the next batch's rows arrive while the others run.
	var slots []*device.Slot
	for i := range under + 1 {
		memory, err := node.Alloc(device.PagedBytes(device.SlotBytes([]*device.Model{m})))
		if err != nil {
			return 0, false, err
		}
		defer memory.Free()
		slots = append(slots, device.NewSlot(i, device.Pages(memory.Bytes())))
	}

	// Cold: the first batches capture the graphs; warmFlow excludes them.
	e, err := accel.New(b.dev, accel.Config{Compile: func(*device.Model, sync.Locker) (accel.Program, error) { return program{b.model}, nil },
		Cold: true, Timeout: c.Timeout, Borrowed: true, Pageable: pageable})
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, e.Close()) }() // before freeing the memory, which it pinned

	for _, s := range slots {
		if err := e.AddSlot(s); err != nil {
			return 0, false, err
		}
	}

	if _, err := e.Load(m); err != nil {
		return 0, false, err
	}
	if _, err := pushBatches(ctx, e, m, slots, batch, warmFlow); err != nil {
		return 0, false, err
	}

	took, err := pushBatches(ctx, e, m, slots, batch, c.Rounds)
	return float64(batch*c.Rounds) / took.Seconds(), e.Memory().Unpinned == 0, err
}

// warmFlow is the number of batches before the measurement: each area's graph is captured, and the bounds have raised
// the device's clocks.
const warmFlow = 2

// pushBatches sends batches through e, with one less under way than there are slots.
func pushBatches(ctx context.Context, e *accel.Executor, m *device.Model, slots []*device.Slot, rows, batches int) (time.Duration, error) {
	of := func(i int) device.Batch { return device.Batch{Model: m, Slot: slots[i%len(slots)], Rows: rows} }

	start := time.Now()
	// The first batch's rows arrive before anything runs, as behind another batch.
	e.Arrived(m, of(0).Slot, device.AllInputs, 0, rows)

	for i := range batches + len(slots) - 2 {
		if i < batches {
			if err := errors.Join(ctx.Err(), e.Submit(of(i))); err != nil {
				return 0, err
			}
			if i+1 < batches {
				e.Arrived(m, of(i+1).Slot, device.AllInputs, 0, rows)
			}
		}

		// Keep one batch less under way than there are slots.
		if last := i - len(slots) + 2; last >= 0 {
			if err := e.Wait(of(last)); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}

var datatypes = map[layers.DataType]model.Datatype{layers.Float32: "FP32", layers.Int32: "INT32", layers.Int64: "INT64", layers.Uint8: "UINT8", layers.Bool: "BOOL"}

// layoutModel returns the rig's graph as a backend's model.
func (b *rig) layoutModel(batchMax int) (*device.Model, error) {
	// Drop the batch dimension, which a backend adds itself.
	all := func(list []layers.Tensor) (out []model.Tensor, configs []repo.TensorConfig) {
		for i, t := range list {
			w := model.Tensor{Name: fmt.Sprint(i), Datatype: datatypes[t.Type]}
			for _, d := range t.Dims[1:] {
				w.Shape = append(w.Shape, int64(d))
			}
			out, configs = append(out, w), append(configs, repo.TensorConfig{Tensor: w})
		}
		return out, configs
	}

	m := &repo.Model{Name: "measured", Version: "1", Platform: repo.PlatformONNX, BatchMax: batchMax, Batched: true, Config: &repo.Config{}}
	m.Inputs, m.Config.Inputs = all(b.plan.Inputs)
	m.Outputs, m.Config.Outputs = all(b.plan.Outputs)
	return device.NewModel(m, batchMax, 1<<30)
}
