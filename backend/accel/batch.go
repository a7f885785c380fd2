package accel

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/residency"
)

// depth is the largest number of batches under way of programs that are not movable: each needs its own area until
// its outputs are copied, and each area a captured graph for each batch size.
const depth = limits.Ahead

// area is device memory as large as a slot.
type area struct {
	memory *cuda.Memory
	busy   bool // guarded by Executor.mu
}

// Submit copies the rows that did not arrive early, runs the program and copies the outputs out, in one submission.
// The three parts run on separate streams and wait for each other by events.
func (e *Executor) Submit(b device.Batch) error {
	if b.Rows < 1 || b.Rows > b.Model.BatchMax {
		return fmt.Errorf("execute %s: batch of %d: want 1 to %d", b.Model.Name, b.Rows, b.Model.BatchMax)
	}

	// An Update replaces the program under the same lock, so the batch counts for the one that it finds.
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tables.RLock()
	l, at := e.models[b.Model], e.slots[b.Slot]
	e.tables.RUnlock()
	if l == nil || at == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	base, err := e.baseOf(at)
	if err != nil {
		return fmt.Errorf("execute %s: %w", b.Model.Name, err)
	}

	s := &e.sub
	s.Reset()
	at.gatherInputs(e, s, b, base)

	// On the device a tensor has the same offset as in the slot.
	for k := range b.Model.Inputs {
		lo, _ := b.Model.Inputs[k].Span(0, b.Rows)
		l.inputs[k] = base + cuda.Address(lo)
	}
	for k := range b.Model.Outputs {
		lo, _ := b.Model.Outputs[k].Span(0, b.Rows)
		l.outputs[k] = base + cuda.Address(lo)
	}

	if err := l.program.Enqueue(s, e.compute, b.Rows, l.inputs, l.outputs); err != nil {
		// Batches under way hold memory: this one may fit once they have ended.
		if e.under > 0 && (errors.Is(err, residency.ErrDoesNotFit) || errors.Is(err, cuda.ErrOutOfMemory)) {
			return fmt.Errorf("run %s: %w: %w", b.Model.Name, device.ErrBusy, err)
		}
		return e.classifyFailure(b, joinErrors(err, e.settleEarly(at)))
	}

	// Outputs are copied on a separate stream, so that the next batch computes meanwhile.
	s.Record(e.compute, at.computed)
	s.Wait(e.out, at.computed)
	for k := range b.Model.Outputs {
		s.CopyOut(e.out, b.Slot.Output(b.Model, k, b.Rows), l.outputs[k])
	}
	s.Record(e.out, at.done)

	at.since = time.Now()
	if err := e.dev.Submit(s); err != nil {
		err = joinErrors(err, e.drainRefused(at, e.patienceFor(b)))
		if !errors.Is(err, cuda.ErrHung) { // otherwise the program stays in use: the device may still run it
			err = joinErrors(err, l.program.Release(b.Rows))
		}
		return e.classifyFailure(b, joinErrors(err, e.settleEarly(at)))
	}

	// Rows that arrive from now on belong to the slot's next batch.
	at.forgetEarly()
	at.area, at.runs = e.takeArea(), l
	l.under++
	return nil
}

// Wait returns when b has ended, and releases its program.
func (e *Executor) Wait(b device.Batch) error {
	e.tables.RLock()
	at := e.slots[b.Slot]
	e.tables.RUnlock()

	// A batch that follows another begins when that one has ended.
	l, began := at.runs, at.since
	if e.ended.After(began) {
		began = e.ended
	}

	patience := e.patienceFor(b)
	if e.hung { // no batch after the one that hangs will end
		patience = limits.Copies
	}

	err := e.dev.WaitAbout(l.took[b.Rows-1]-time.Since(began), patience, at.done)
	e.ended = time.Now()
	if e.hung = e.hung || errors.Is(err, cuda.ErrHung); errors.Is(err, cuda.ErrHung) {
		return e.classifyFailure(b, err) // program and area stay in use: the device may still run it
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		l.noteTime(b.Rows, e.ended.Sub(began))
	}

	e.leaveArea(at.area)
	err = joinErrors(err, l.program.Release(b.Rows))
	l.under--
	e.closeRetired()
	if err != nil {
		return e.classifyFailure(b, err)
	}
	return nil
}

// baseOf returns the device address of a batch's tensors, which have the same offsets as in a slot. e.mu is held.
func (e *Executor) baseOf(at *place) (cuda.Address, error) {
	if e.cfg.Movable {
		return at.memory.Address(), nil
	}

	a := &e.areas[e.turn]
	if a.busy {
		return 0, device.ErrBusy
	}
	return a.memory.Address(), nil
}

// takeArea assigns the next area to the submitted batch. Areas take turns, so that warm-up captures the graphs of
// each. e.mu is held.
func (e *Executor) takeArea() *area {
	e.under++
	a := &e.areas[e.turn]
	if !e.cfg.Movable {
		a.busy = true
		e.turn = (e.turn + 1) % depth
	}
	return a
}

// leaveArea releases a batch's area. e.mu is held.
func (e *Executor) leaveArea(a *area) {
	e.under--
	a.busy = false
}

// settleEarly waits for early copies of a failed batch (X2).
func (e *Executor) settleEarly(at *place) error {
	err := e.dev.WaitFor(limits.Copies, at.ended)
	at.forgetEarly()
	return err
}

// drainRefused waits for the enqueued part of a submission that the device refused: then its memory may be reused.
func (e *Executor) drainRefused(at *place, patience time.Duration) error {
	// Repeat the same chain of events: its end lies after every command enqueued on any of the streams.
	s := &e.sub
	s.Reset()
	s.Record(e.in, at.brought)
	s.Wait(e.compute, at.brought)
	s.Record(e.compute, at.computed)
	s.Wait(e.out, at.computed)
	s.Record(e.out, at.done)
	return joinErrors(e.dev.Submit(s), e.dev.WaitFor(patience, at.done))
}

// patienceFor returns how long a batch may take, after those before it have ended, before the device counts as
// hanging.
func (e *Executor) patienceFor(b device.Batch) time.Duration {
	l := time.Duration(0)
	if p := b.Model.Profile; p != nil && b.Rows <= p.Max() {
		l = p.Exec(b.Rows)
	}

	// A configured limit applies to a short batch; a long one gets its profile's time in addition.
	if e.cfg.Timeout > 0 {
		return max(e.cfg.Timeout, limits.Backend(l)-limits.Backend(0))
	}
	return limits.Device(l)
}

// joinErrors is errors.Join without an allocation for at most one error.
func joinErrors(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}

// classifyFailure wraps a batch's error with its model, and with device.ErrLost if the device is unusable.
func (e *Executor) classifyFailure(b device.Batch, err error) error {
	err = fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	if errors.Is(err, cuda.ErrHung) || e.dev.Err() != nil {
		return errors.Join(err, device.ErrLost)
	}
	return err
}
