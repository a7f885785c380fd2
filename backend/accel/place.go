package accel

import (
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/cuda"
)

// earlyBytes is the size from which a run of rows is worth a separate submission: the link moves it in about the time
// that enqueueing a copy takes.
const earlyBytes = 32 << 10

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

// Arrived starts the copies of rows that are large enough to be worth it; see device.Early.
func (e *Executor) Arrived(m *device.Model, slot *device.Slot, k, from, to int) {
	first, last, bytes := 0, len(m.Inputs)-1, m.InBytes
	if k != device.AllInputs {
		first, last, bytes = k, k, m.Inputs[k].Bytes
	}
	if (to-from)*bytes < earlyBytes {
		return
	}

	e.tables.RLock()
	at, known := e.slots[slot], e.models[m] != nil
	e.tables.RUnlock()
	if at == nil || !known {
		return
	}

	at.mu.Lock()
	defer at.mu.Unlock()

	// These are the first rows of a batch: none of it is on the device yet.
	if at.model != m {
		at.model, at.any = m, false
		at.rows = append(at.rows[:0], make([]bool, m.BatchMax*len(m.Inputs))...)
	}

	s := &at.sub
	s.Reset()
	for k := first; k <= last; k++ {
		lo, hi := m.Inputs[k].Span(from, to)
		s.CopyIn(e.early, at.memory.Address()+cuda.Address(lo), slot.Memory()[lo:hi])
	}

	s.Record(e.early, at.ended)
	at.any = true

	if e.dev.Submit(s) != nil { // some may be under way: the batch copies them again, after this record
		s.Reset()
		s.Record(e.early, at.ended)
		_ = e.dev.Submit(s)
		return
	}

	for k := first; k <= last; k++ {
		for i := from; i < to; i++ {
			at.rows[k*m.BatchMax+i] = true
		}
	}
}

// Abandon discards the early rows and waits until nothing reads the slot.
func (e *Executor) Abandon(m *device.Model, slot *device.Slot) {
	e.tables.RLock()
	at := e.slots[slot]
	e.tables.RUnlock()
	if at == nil {
		return
	}

	at.mu.Lock()
	defer at.mu.Unlock()
	if at.any {
		_ = e.dev.WaitFor(limits.Copies, at.ended) // a failing device reports the error to the next batch
	}
	at.model, at.any = nil, false
}

// gatherInputs adds to s the commands that bring b's inputs to base. Early rows are already there, or are copied
// there within the device; the others come from the slot. The computation waits for them. While a batch is under way
// these copies run on stream in, concurrently with its computation; otherwise they run on the compute stream, which
// saves an event. e.mu is held.
func (at *place) gatherInputs(e *Executor, s *cuda.Submission, b device.Batch, base cuda.Address) {
	at.mu.Lock()
	defer at.mu.Unlock()

	// With a batch under way inputs are copied concurrently; otherwise one stream saves an event.
	in := e.compute
	if e.under > 0 {
		in = e.in
	}

	if at.any {
		s.Wait(in, at.ended) // also for unused rows: their copies must not come later
	}

	// Move early rows and copy the others, each in runs of equal kind.
	for k := range b.Model.Inputs {
		for from := 0; from < b.Rows; {
			here := at.isEarly(b.Model, k, from)
			to := from + 1
			for to < b.Rows && at.isEarly(b.Model, k, to) == here {
				to++
			}

			lo, hi := b.Model.Inputs[k].Span(from, to)
			dst := base + cuda.Address(lo)
			switch {
			case !here:
				s.CopyIn(in, dst, at.slot.Memory()[lo:hi])
			case !e.cfg.Movable:
				s.Copy(in, dst, at.memory.Address()+cuda.Address(lo), int64(hi-lo))
			}
			from = to
		}
	}

	// The program must not begin before its inputs are complete.
	if in != e.compute {
		s.Record(in, at.brought)
		s.Wait(e.compute, at.brought)
	}
}

// isEarly reports whether input k of a row of m was copied, or is on the way. at.mu is held.
func (at *place) isEarly(m *device.Model, k, row int) bool {
	return at.any && at.model == m && at.rows[k*m.BatchMax+row]
}

// forgetEarly discards the record of early rows: their batch was submitted, or never will be.
func (at *place) forgetEarly() {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.model, at.any = nil, false
}
