package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/cuda"
)

// Compute adds to s the commands on st that turn inputs into outputs for a batch of n requests. The
// addresses are those of each tensor, [n, …] row-major; they stay the same for a slot's life.
type Compute func(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error

// Batch is a slot in use.
type Batch struct {
	p             *Pipeline
	hostIn        *cuda.Slab
	hostOut       *cuda.Slab
	devIn, devOut *cuda.Memory
	inputs        []cuda.Address
	outputs       []cuda.Address
	events        [stages + 1]*cuda.Event // the start of the first copy, then each stage's end

	mu        sync.Mutex
	sub       cuda.Submission
	arrived   []bool
	count     int // how many arrived
	started   bool
	size      int // set by Submit
	submitted bool
}

// The stages of a batch, in order.
const (
	StageIn = iota
	StageCompute
	StageOut
	stages
)

func (b *Batch) open() (err error) {
	p := b.p
	n := int64(p.cfg.BatchMax)
	b.arrived = make([]bool, p.cfg.BatchMax)
	alloc := p.dev.AllocHost
	if p.cfg.Pageable {
		alloc = p.dev.AllocPageable
	}
	if b.hostIn, err = alloc(n * p.payload); err != nil {
		return err
	}
	if b.hostOut, err = alloc(n * p.answer); err != nil {
		return err
	}
	if b.devIn, b.inputs, err = tensors(p.dev, p.cfg.Inputs, n); err != nil {
		return err
	}
	if b.devOut, b.outputs, err = tensors(p.dev, p.cfg.Outputs, n); err != nil {
		return err
	}
	for i := range b.events {
		if b.events[i], err = p.dev.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// tensors allocates room for n of each size, each tensor aligned to 256 bytes.
func tensors(dev *cuda.Device, sizes []int64, n int64) (*cuda.Memory, []cuda.Address, error) {
	var total int64
	at := make([]cuda.Address, len(sizes))
	for i, size := range sizes {
		at[i] = cuda.Address(total)
		total += (size*n + 255) &^ 255
	}
	mem, err := dev.Alloc(total)
	if err != nil {
		return nil, nil, err
	}
	for i := range at {
		at[i] += mem.Address()
	}
	return mem, at, nil
}

func (b *Batch) reset() {
	clear(b.arrived)
	b.count, b.size, b.started, b.submitted = 0, 0, false, false
}

// Input returns where request i's payload belongs: the data plane writes there directly.
func (b *Batch) Input(i int) []byte {
	n := b.p.payload
	return b.hostIn.Bytes()[int64(i)*n : int64(i+1)*n : int64(i+1)*n]
}

// Pinned tells whether the slot's host memory is pinned, so that its copies overlap.
func (b *Batch) Pinned() bool { return b.hostIn.Pinned() && b.hostOut.Pinned() }

// Arrived starts the copies of requests first…first+n−1, whose payloads are complete. Requests that
// arrived together are copied together: one command for each input tensor of each request, one for
// all when the model has a single input.
func (b *Batch) Arrived(first, n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if first < 0 || n < 1 || first+n > b.p.cfg.BatchMax {
		return fmt.Errorf("requests %d to %d arrived: a batch has 0 to %d", first, first+n-1, b.p.cfg.BatchMax-1)
	}
	if b.submitted {
		return fmt.Errorf("request %d arrived after the batch of %d was submitted", first, b.size)
	}
	for i := first; i < first+n; i++ {
		if b.arrived[i] {
			return fmt.Errorf("request %d arrived twice", i)
		}
	}
	b.sub.Reset()
	if !b.started {
		b.sub.Record(b.p.in, b.events[0])
		b.started = true
	}
	b.copyIn(first, n)
	if err := b.p.dev.Submit(&b.sub); err != nil {
		return fmt.Errorf("copy in: %w", err)
	}
	for i := first; i < first+n; i++ {
		b.arrived[i] = true
	}
	b.count += n
	return nil
}

func (b *Batch) copyIn(first, n int) {
	sizes := b.p.cfg.Inputs
	host := b.hostIn.Bytes()
	if len(sizes) == 1 {
		at := int64(first) * sizes[0]
		b.sub.CopyIn(b.p.in, b.inputs[0]+cuda.Address(at), host[at:at+int64(n)*sizes[0]])
		return
	}
	for i := int64(first); i < int64(first+n); i++ {
		at := i * b.p.payload
		for t, size := range sizes {
			b.sub.CopyIn(b.p.in, b.inputs[t]+cuda.Address(i*size), host[at:at+size])
			at += size
		}
	}
}

// Submit enqueues compute behind the copies of requests 0…n−1, all of which must have arrived, and the
// copies out behind compute, in one crossing.
func (b *Batch) Submit(n int, compute Compute) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < 1 || n > b.p.cfg.BatchMax {
		return fmt.Errorf("batch of %d: must be 1 to %d", n, b.p.cfg.BatchMax)
	}
	if b.submitted {
		return errors.New("the batch was submitted already")
	}
	for i := range n {
		if !b.arrived[i] {
			return fmt.Errorf("batch of %d: request %d has not arrived", n, i)
		}
	}
	p, s := b.p, &b.sub
	s.Reset()
	s.Record(p.in, b.events[StageIn+1])
	s.Wait(p.compute, b.events[StageIn+1])
	if err := compute(s, p.compute, n, b.inputs, b.outputs); err != nil {
		return fmt.Errorf("compute: %w", err)
	}
	s.Record(p.compute, b.events[StageCompute+1])
	s.Wait(p.out, b.events[StageCompute+1])
	b.copyOut(n)
	s.Record(p.out, b.events[StageOut+1])
	b.size, b.submitted = n, true
	if err := p.dev.Submit(s); err != nil {
		return fmt.Errorf("submit batch of %d: %w", n, err)
	}
	return nil
}

func (b *Batch) copyOut(n int) {
	var at int64
	for t, size := range b.p.cfg.Outputs {
		bytes := size * int64(n)
		b.sub.CopyOut(b.p.out, b.hostOut.Bytes()[at:at+bytes], b.outputs[t])
		at += bytes
	}
}

// Wait returns when the outputs are on the host, or why they never will be.
func (b *Batch) Wait(ctx context.Context) error {
	if !b.submitted {
		return errors.New("wait for a batch that was not submitted")
	}
	return b.p.dev.Wait(ctx, b.events[StageOut+1])
}

// Output returns tensor t of request i after Wait; valid until Free.
func (b *Batch) Output(t, i int) []byte {
	sizes := b.p.cfg.Outputs
	var at int64
	for _, size := range sizes[:t] {
		at += size * int64(b.size)
	}
	at += int64(i) * sizes[t]
	return b.hostOut.Bytes()[at : at+sizes[t] : at+sizes[t]]
}

// StageTimes returns how long each stage took on the device, waiting included, after Wait.
func (b *Batch) StageTimes() (times [stages]time.Duration, err error) {
	for i := range times {
		if times[i], err = b.p.dev.Elapsed(b.events[i], b.events[i+1]); err != nil {
			return times, fmt.Errorf("stage times: %w", err)
		}
	}
	return times, nil
}

// Free gives the slot back. A batch whose copies may still run (it was given up before Wait returned
// nil) keeps its slot until they have ended, or until ctx does; then the slot is lost until Close.
func (b *Batch) Free(ctx context.Context) error {
	if b.started && !b.submitted { // given up: copies may be under way
		b.sub.Reset()
		b.sub.Record(b.p.in, b.events[StageOut+1])
		if err := b.p.dev.Submit(&b.sub); err != nil {
			return fmt.Errorf("free batch: %w", err)
		}
	}
	if b.started {
		if err := b.p.dev.Wait(ctx, b.events[StageOut+1]); err != nil {
			return fmt.Errorf("free batch: %w", err)
		}
	}
	b.p.free <- b
	return nil
}

func (b *Batch) close() {
	b.hostIn.Free()
	b.hostOut.Free()
	b.devIn.Free()
	b.devOut.Free()
	for _, e := range b.events {
		e.Free()
	}
}
