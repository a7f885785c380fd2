package accel

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/residency"
)

// depth is how many batches of programs that are not movable can be under way: each needs an area of its own
// until its outputs have left, and each area a captured graph for each batch size.
const depth = 2

// area is device memory as large as a slot.
type area struct {
	memory *cuda.Memory
	busy   bool // guarded by Executor.mu
}

// Execute is Submit and Wait.
func (e *Executor) Execute(b device.Batch) error {
	if err := e.Submit(b); err != nil {
		return err
	}
	return e.Wait(b)
}

// Submit copies what has not arrived early, runs the program and copies the outputs out, in one submission. The
// three run on streams of their own and wait for each other by events.
func (e *Executor) Submit(b device.Batch) error {
	l, at := e.models[b.Model], e.slots[b.Slot]
	if l == nil || at == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	if b.Rows < 1 || b.Rows > b.Model.BatchMax {
		return fmt.Errorf("execute %s: batch of %d: want 1 to %d", b.Model.Name, b.Rows, b.Model.BatchMax)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	base, err := e.base(at)
	if err != nil {
		return fmt.Errorf("execute %s: %w", b.Model.Name, err)
	}
	s := &e.sub
	s.Reset()
	at.gather(e, s, b, base)
	for k := range b.Model.Inputs {
		lo, _ := b.Model.Inputs[k].Span(0, b.Rows)
		l.inputs[k] = base + cuda.Address(lo)
	}
	for k := range b.Model.Outputs {
		lo, _ := b.Model.Outputs[k].Span(0, b.Rows)
		l.outputs[k] = base + cuda.Address(lo)
	}
	if err := l.program.Enqueue(s, e.compute, b.Rows, l.inputs, l.outputs); err != nil {
		if e.under > 0 && (errors.Is(err, residency.ErrDoesNotFit) || errors.Is(err, cuda.ErrOutOfMemory)) {
			return fmt.Errorf("run %s: %w: %w", b.Model.Name, device.ErrBusy, err)
		}
		return e.failed(b, join(err, e.settle(at)))
	}
	s.Record(e.compute, at.computed)
	s.Wait(e.out, at.computed)
	for k := range b.Model.Outputs {
		s.CopyOut(e.out, b.Slot.Output(b.Model, k, b.Rows), l.outputs[k])
	}
	s.Record(e.out, at.done)
	at.since = time.Now()
	if err := e.dev.Submit(s); err != nil {
		err = join(err, e.drain(at, e.patience(b)))
		if !errors.Is(err, cuda.ErrHung) { // else the program stays in use: the device may still run it
			err = join(err, l.program.Release(b.Rows))
		}
		return e.failed(b, join(err, e.settle(at)))
	}
	at.forget()
	at.area = e.take()
	return nil
}

// Wait returns when b has ended, and ends its use of the program.
func (e *Executor) Wait(b device.Batch) error {
	l, at := e.models[b.Model], e.slots[b.Slot]
	began := at.since
	if e.ended.After(began) {
		began = e.ended
	}
	patience := e.patience(b)
	if e.hung { // nothing behind the batch that hangs will end
		patience = abandonMost
	}
	err := e.dev.WaitAbout(l.took[b.Rows-1]-time.Since(began), patience, at.done)
	e.ended = time.Now()
	if e.hung = e.hung || errors.Is(err, cuda.ErrHung); errors.Is(err, cuda.ErrHung) {
		return e.failed(b, err) // program and area stay in use: the device may still run it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		l.note(b.Rows, e.ended.Sub(began))
	}
	e.leave(at.area)
	if err = join(err, l.program.Release(b.Rows)); err != nil {
		return e.failed(b, err)
	}
	return nil
}

// base is where a batch's tensors lie on the device, at the offsets that they have in a slot. e.mu is held.
func (e *Executor) base(at *place) (cuda.Address, error) {
	if e.cfg.Movable {
		return at.memory.Address(), nil
	}
	a := &e.areas[e.turn]
	if a.busy {
		return 0, device.ErrBusy
	}
	return a.memory.Address(), nil
}

// take gives base's area to the batch that was submitted. Areas go round, so that each one's graphs are captured
// in warm-up. e.mu is held.
func (e *Executor) take() *area {
	e.under++
	a := &e.areas[e.turn]
	if !e.cfg.Movable {
		a.busy = true
		e.turn = (e.turn + 1) % depth
	}
	return a
}

// leave ends a batch. e.mu is held.
func (e *Executor) leave(a *area) {
	e.under--
	a.busy = false
}

// settle waits for early copies of a batch that has failed (X2).
func (e *Executor) settle(at *place) error {
	err := e.dev.WaitFor(abandonMost, at.ended)
	at.forget()
	return err
}

// drain waits for what was enqueued of a submission that the device refused: its memory may be used again then.
func (e *Executor) drain(at *place, patience time.Duration) error {
	s := &e.sub
	s.Reset()
	s.Record(e.in, at.brought)
	s.Wait(e.compute, at.brought)
	s.Record(e.compute, at.computed)
	s.Wait(e.out, at.computed)
	s.Record(e.out, at.done)
	return join(e.dev.Submit(s), e.dev.WaitFor(patience, at.done))
}

// patience is how long a batch may take, once those before it have ended, before the device counts as hanging.
func (e *Executor) patience(b device.Batch) time.Duration {
	if b.Model.Profile == nil || b.Rows > b.Model.Profile.Max() {
		return e.cfg.Timeout
	}
	return max(e.cfg.Timeout, patienceFactor*b.Model.Profile.Exec(b.Rows))
}

const patienceFactor = 20

// join is errors.Join without an allocation when there is at most one error.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}

// failed says whose batch failed, and whether the device can be of any more use.
func (e *Executor) failed(b device.Batch, err error) error {
	err = fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	if errors.Is(err, cuda.ErrHung) || e.dev.Err() != nil {
		return errors.Join(err, device.ErrLost)
	}
	return err
}
