package accel

import (
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
)

// place is a slot's memory and state on the device.
type place struct {
	slot   *device.Slot
	pinned *cuda.Registered // nil: copies use pageable memory
	memory *cuda.Memory     // as large as the slot

	// Of the batch under way on the slot.
	brought  *cuda.Event // its inputs are where the program expects them
	computed *cuda.Event // its outputs are on the device
	done     *cuda.Event // its outputs are in the slot
	since    time.Time   // when it was submitted
	area     *area
	runs     *loaded // its program

	mu    sync.Mutex
	model *device.Model // whose rows have arrived early; nil: none
	rows  []bool        // of each input of model, all its rows: copied, or on the way
	any   bool          // a copy was enqueued since the last batch or Abandon
	ended *cuda.Event   // the last early copy
	sub   cuda.Submission
}

// AddSlot pins s and allocates its memory on the device.
func (e *Executor) AddSlot(s *device.Slot) error {
	e.tables.Lock()
	defer e.tables.Unlock()
	if e.slots[s] != nil {
		return nil
	}

	for m := range e.models {
		if err := s.Fits(m); err != nil {
			return err
		}
	}

	at, err := e.newPlace(s)
	if err == nil {
		e.slots[s] = at
		if err = e.fitAreas(); err == nil {
			return nil
		}
	}

	// Remove a partly added slot entirely.
	delete(e.slots, s)
	e.closePlace(at)
	return fmt.Errorf("slot %d: %w", s.Index, err)
}

// DropSlot frees the memory of s on the device.
func (e *Executor) DropSlot(s *device.Slot) error {
	e.tables.Lock()
	defer e.tables.Unlock()
	at := e.slots[s]
	if at == nil {
		return nil
	}

	delete(e.slots, s)
	e.closePlace(at)
	return e.fitAreas()
}

// newPlace creates a slot's place. tables is held.
func (e *Executor) newPlace(s *device.Slot) (at *place, err error) {
	at = &place{slot: s}
	if !e.cfg.Pageable {
		at.pinned, err = e.dev.Register(s.Memory())
	}
	if at.pinned == nil {
		e.unpinned++ // configured so, or the limit on locked pages, or a page shared with a neighbor: slower, not wrong
		if e.dev.Err() != nil {
			return at, err
		}
	}

	// The stages of a batch in this slot.
	for _, ev := range []**cuda.Event{&at.ended, &at.brought, &at.computed, &at.done} {
		if *ev, err = e.dev.NewEvent(); err != nil {
			return at, err
		}
	}

	if at.memory, err = e.dev.Alloc(int64(len(s.Memory()))); err == nil {
		e.held += at.memory.Bytes()
	}
	return at, err
}

// closePlace frees a place, also a partly created one. tables is held.
func (e *Executor) closePlace(at *place) {
	if at.pinned == nil {
		e.unpinned--
	}
	if at.memory != nil {
		e.held -= at.memory.Bytes()
	}
	at.freeOnDevice()
}

// fitAreas makes the areas as large as the largest slot. Graphs with the old addresses are captured again when their
// batch sizes next run. tables is held, and no batch is under way.
func (e *Executor) fitAreas() error {
	if e.cfg.Movable {
		return nil
	}

	size := int64(0)
	for s := range e.slots {
		size = max(size, int64(len(s.Memory())))
	}

	// Areas that are large enough keep their addresses, and with them their graphs.
	if m := e.areas[0].memory; m != nil && m.Bytes() == size {
		return nil
	}

	e.freeAreas()
	for i := range e.areas {
		if size == 0 {
			break
		}
		m, err := e.dev.Alloc(size)
		if err != nil {
			e.freeAreas()
			return err
		}
		e.areas[i].memory = m
		e.held += m.Bytes()
	}
	return nil
}

func (e *Executor) freeAreas() {
	for i := range e.areas {
		a := &e.areas[i]
		if a.memory != nil {
			e.held -= a.memory.Bytes()
			a.memory.Free()
			a.memory = nil
		}
	}
}

func (at *place) freeOnDevice() {
	at.pinned.Free()
	at.memory.Free()
	for _, ev := range []*cuda.Event{at.ended, at.brought, at.computed, at.done} {
		ev.Free()
	}
}
