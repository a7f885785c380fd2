//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"sync"

	"downbeat.dev/backend/device"
	"downbeat.dev/csrc/heap"
)

// Executor runs batches on the thread that waits for them, and on further ones of its sessions if it has several. It is a
// device.Executor.
type Executor struct {
	runtime *Runtime
	threads int // of a batch

	mu     sync.RWMutex
	slots  []*device.Slot            // guarded by mu
	models map[*device.Model]*loaded // guarded by mu
}

// Capabilities says that batches run one at a time on the processor.
func (e *Executor) Capabilities() device.Capabilities {
	return device.Capabilities{Passes: 1, OnHost: true}
}

// Memory returns nothing, because the runtime reports no memory.
func (e *Executor) Memory() device.Memory { return device.Memory{} }

// AddSlot binds every loaded model to s.
func (e *Executor) AddSlot(s *device.Slot) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.slots {
		if other == s {
			return nil
		}
	}

	var err error
	for m, l := range e.models {
		if err = l.addSlot(m, s); err != nil {
			err = fmt.Errorf("slot %d: model %s version %s: %w", s.Index, m.Name, m.Version, err)
			break
		}
	}

	// Append also after an error: dropSlot then frees the bindings made so far.
	e.slots = append(e.slots, s)
	if err != nil {
		return errors.Join(err, e.dropSlot(s))
	}
	return nil
}

// DropSlot frees every loaded model's bindings to s.
func (e *Executor) DropSlot(s *device.Slot) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropSlot(s)
}

func (e *Executor) dropSlot(s *device.Slot) error {
	var errs []error
	for _, l := range e.models {
		errs = append(errs, l.slots[s].freeBindings())
		delete(l.slots, s)
	}

	for i := range e.slots {
		if e.slots[i] == s {
			e.slots = append(e.slots[:i], e.slots[i+1:]...)
			break
		}
	}
	return errors.Join(errs...)
}

// Submit does nothing: Wait runs the batch, on its caller's thread.
func (e *Executor) Submit(device.Batch) error { return nil }

// Wait runs b.
func (e *Executor) Wait(b device.Batch) error {
	e.mu.RLock()
	l := e.models[b.Model]
	if l == nil {
		e.mu.RUnlock()
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}

	// Lock before mu is released: a replacement of the session now waits for this batch.
	l.running.RLock()
	defer l.running.RUnlock()
	to := l.slots[b.Slot]
	e.mu.RUnlock()

	if l.packed != nil {
		return l.executePacked(b)
	}
	if to == nil {
		return fmt.Errorf("execute %s: slot %d was not added", b.Model.Name, b.Slot.Index)
	}
	if err := l.session.RunWithBinding(to.rows[b.Rows-1]); err != nil {
		return fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	}
	return nil
}

// freeLoaded frees a session that no batch can find any more, once its last batch has ended.
func (e *Executor) freeLoaded(l *loaded) error {
	l.running.Lock()
	defer l.running.Unlock()
	var errs []error
	for _, to := range l.slots {
		errs = append(errs, to.freeBindings())
	}
	if l.packed != nil {
		errs = append(errs, l.packed.freePacked())
	}
	errs = append(errs, e.runtime.releaseSession(l.session))

	// The session was in C's heap, which keeps freed pages.
	heap.Trim()
	return errors.Join(errs...)
}

// Close frees the bindings, and the sessions that no other executor uses.
func (e *Executor) Close() error {
	var errs []error
	for m, l := range e.models {
		errs = append(errs, e.freeLoaded(l))
		delete(e.models, m)
	}
	return errors.Join(errs...)
}
