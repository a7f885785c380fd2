// Package pipeline overlaps the three stages of consecutive batches on one device: while one batch
// computes, the next one's inputs are copied in and the last one's outputs are copied out.
//
// A batch takes a slot: pinned host memory that the data plane writes into, and device memory. Each
// request's copy starts when its bytes have arrived, while others are still on their way; compute
// waits on the device for all of them, never on the host. The package does not choose batches and
// does not know what compute does.
//
// Invariants: P1 a slot is owned by one batch from Begin to Free, so no copy overwrites what a kernel
// still reads. P2 after Wait or a failed Submit nothing of the batch runs any more, unless the device
// hangs. P3 after warm-up the path Begin…Free allocates nothing of its own.
//
// Concurrency: Begin, and Arrived of one batch, may be called from any goroutine (completions of the
// data plane). Submit, Wait and Free belong to the batch's owner. Close after every batch is freed.
package pipeline

import (
	"context"
	"fmt"
	"sync"

	"downbeat.dev/cuda"
)

// Config fixes the slots. Sizes are bytes of one request's tensors, in the model's order; a request's
// payload is its input tensors one after the other.
type Config struct {
	Slots    int // batches under way; 3 keeps all stages busy
	BatchMax int
	Inputs   []int64
	Outputs  []int64
	Pageable bool // do without pinned memory: for comparison only
}

// Pipeline owns three streams and the slots.
type Pipeline struct {
	dev     *cuda.Device
	cfg     Config
	in      *cuda.Stream
	compute *cuda.Stream
	out     *cuda.Stream
	payload int64       // bytes of one request's inputs
	answer  int64       // bytes of one request's outputs
	free    chan *Batch // idle slots
	all     []*Batch
	closed  sync.Once
}

const (
	slotsMax   = 64
	batchesMax = 1 << 16
	tensorsMax = 64
)

func (c Config) check() error {
	switch {
	case c.Slots < 1 || c.Slots > slotsMax:
		return fmt.Errorf("slots %d: must be 1 to %d", c.Slots, slotsMax)
	case c.BatchMax < 1 || c.BatchMax > batchesMax:
		return fmt.Errorf("batch max %d: must be 1 to %d", c.BatchMax, batchesMax)
	case len(c.Inputs) == 0 || len(c.Inputs) > tensorsMax || len(c.Outputs) == 0 || len(c.Outputs) > tensorsMax:
		return fmt.Errorf("%d inputs and %d outputs: each must be 1 to %d", len(c.Inputs), len(c.Outputs), tensorsMax)
	}
	for i, n := range append(append([]int64(nil), c.Inputs...), c.Outputs...) {
		if n <= 0 {
			return fmt.Errorf("tensor %d of inputs and outputs has %d bytes: must be positive", i, n)
		}
	}
	return nil
}

// Open reserves every slot's memory; on an error nothing stays reserved.
func Open(dev *cuda.Device, c Config) (*Pipeline, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("open pipeline: %w", err)
	}
	p := &Pipeline{dev: dev, cfg: c, free: make(chan *Batch, c.Slots), payload: sum(c.Inputs), answer: sum(c.Outputs)}
	err := p.open()
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("open pipeline: %w", err)
	}
	return p, nil
}

func (p *Pipeline) open() (err error) {
	for _, st := range []**cuda.Stream{&p.in, &p.compute, &p.out} {
		if *st, err = p.dev.NewStream(); err != nil {
			return err
		}
	}
	for range p.cfg.Slots {
		b := &Batch{p: p}
		p.all = append(p.all, b)
		if err := b.open(); err != nil {
			return err
		}
		p.free <- b
	}
	return nil
}

// Stream returns the stream that compute runs on, for capturing graphs.
func (p *Pipeline) Stream() *cuda.Stream { return p.compute }

// Begin takes a free slot, or waits for one until ctx ends.
func (p *Pipeline) Begin(ctx context.Context) (*Batch, error) {
	select {
	case b := <-p.free:
		b.reset()
		return b, nil
	default:
	}
	select {
	case b := <-p.free:
		b.reset()
		return b, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("begin batch: no slot of %d is free: %w", p.cfg.Slots, ctx.Err())
	}
}

// Close gives everything back. Batches that were not freed are abandoned: after a hang, say.
func (p *Pipeline) Close() {
	p.closed.Do(func() {
		for _, b := range p.all {
			b.close()
		}
		p.in.Free()
		p.compute.Free()
		p.out.Free()
	})
}

func sum(sizes []int64) (n int64) {
	for _, s := range sizes {
		n += s
	}
	return n
}
