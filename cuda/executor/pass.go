package executor

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/cuda"
)

// Pass is a batch that runs some layers at a time, with other batches on the device in between. It holds its parameters
// and activations at their addresses until End (E1), so Advance uses nothing that models share.
type Pass struct {
	m    *Model
	p    *plan
	st   *cuda.Stream
	base []cuda.Address
	next int // the first layer that has not run
	done *cuda.Event
	s    cuda.Submission
}

// Begin begins a batch of n that Advance runs. A model has one pass at a time, and no other batch meanwhile.
func (m *Model) Begin(st *cuda.Stream, n int, inputs, outputs []cuda.Address) (*Pass, error) {
	p, err := m.planFor(n)
	if err != nil {
		return nil, err
	}

	if len(inputs) != len(p.Inputs) || len(outputs) != len(p.Outputs) {
		return nil, fmt.Errorf("%d inputs and %d outputs: the model has %d and %d", len(inputs), len(outputs), len(p.Inputs), len(p.Outputs))
	}

	pass := &Pass{m: m, p: p, st: st}
	if pass.done, err = m.r.dev.NewEvent(); err != nil {
		return nil, err
	}

	if err := m.r.store.Acquire(time.Since(m.r.start), p.contents, &pass.s, st); err != nil {
		pass.done.Free()
		return nil, fmt.Errorf("batch of %d: %w", n, err)
	}

	pass.base = slices.Clone(m.bufferBases(p, inputs, outputs))
	return pass, nil
}

// Layers returns how many layers the batch has, and how many of them have run.
func (p *Pass) Layers() (all, ran int) { return len(p.p.Layers), p.next }

// Advance runs the next n layers, or those that are left, in one submission, and waits for them for at most limit.
// Another goroutine may use the Runtime meanwhile.
func (p *Pass) Advance(n int, limit time.Duration) error {
	to := min(p.next+n, len(p.p.Layers))
	p.m.addLaunches(&p.s, p.st, p.p, p.base, p.next, to)
	p.s.Record(p.st, p.done)

	err := p.m.r.dev.Submit(&p.s)
	p.s.Reset()
	if err == nil {
		err = p.m.r.dev.WaitFor(limit, p.done)
	}

	if err != nil {
		return fmt.Errorf("layers %d to %d: %w", p.next, to-1, err)
	}
	p.next = to
	return nil
}

// End ends the batch, whether all its layers have run or not. After an Advance that failed the device may still use
// the contents, and the caller gives up the device.
func (p *Pass) End() error {
	p.done.Free()
	return p.m.r.store.Release(p.p.contents, nil)
}
