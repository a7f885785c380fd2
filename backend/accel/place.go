package accel

import (
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
)

const (
	// earlyBytes is from which size on a run of rows is worth a submission of its own: the link moves it in
	// about the time that enqueueing a copy takes.
	earlyBytes = 32 << 10
	// abandonMost is how long Abandon waits. A device that does not copy a slot in that time hangs; what it
	// reads then goes nowhere.
	abandonMost = 200 * time.Millisecond
)

// place is a slot on the device.
type place struct {
	slot   *device.Slot
	pinned *cuda.Registered // nil: copies go the slow way
	memory *cuda.Memory     // as large as the slot

	// Of the batch under way on the slot.
	brought  *cuda.Event // its inputs are where the program finds them
	computed *cuda.Event // its outputs are on the device
	done     *cuda.Event // and in the slot
	since    time.Time   // when it was submitted
	area     *area

	mu    sync.Mutex
	model *device.Model // whose rows have arrived early; nil: nobody's
	rows  []bool        // of each input of model, all its rows: copied, or on the way
	any   bool          // a copy was enqueued since the last batch or Abandon
	ended *cuda.Event   // the last early copy
	sub   cuda.Submission
}

// place makes room on the device for slots that it does not know.
func (e *Executor) place(slots []*device.Slot) error {
	for _, s := range slots {
		if e.slots[s] != nil {
			continue
		}
		at, err := e.newPlace(s)
		for i := 0; err == nil && !e.cfg.Movable && i < depth; i++ {
			if e.areas[i].memory == nil {
				e.areas[i].memory, err = e.dev.Alloc(int64(len(s.Memory())))
			}
		}
		if err != nil {
			at.close()
			return fmt.Errorf("slot %d: %w", s.Index, err)
		}
		e.slots[s] = at
	}
	for _, s := range slots {
		if a := e.areas[0].memory; a != nil && a.Bytes() < int64(len(s.Memory())) {
			return fmt.Errorf("slot %d has %d bytes, the first had %d: all must be alike", s.Index, len(s.Memory()), a.Bytes())
		}
	}
	return nil
}

func (e *Executor) newPlace(s *device.Slot) (at *place, err error) {
	at = &place{slot: s}
	if !e.cfg.Pageable {
		at.pinned, err = e.dev.Register(s.Memory())
	}
	if at.pinned == nil {
		if e.dev.Err() != nil {
			return at, err
		}
		e.unpinned++ // as asked; or the limit on locked pages, or a page shared with a neighbour: slower, not wrong
	}
	for _, ev := range []**cuda.Event{&at.ended, &at.brought, &at.computed, &at.done} {
		if *ev, err = e.dev.NewEvent(); err != nil {
			return at, err
		}
	}
	at.memory, err = e.dev.Alloc(int64(len(s.Memory())))
	return at, err
}

func (at *place) close() {
	at.pinned.Free()
	at.memory.Free()
	for _, ev := range []*cuda.Event{at.ended, at.brought, at.computed, at.done} {
		ev.Free()
	}
}

// Arrived starts the copies of rows that are large enough for it to pay; device.Early says more.
func (e *Executor) Arrived(m *device.Model, slot *device.Slot, k, from, to int) {
	first, last, bytes := 0, len(m.Inputs)-1, m.InBytes
	if k != device.AllInputs {
		first, last, bytes = k, k, m.Inputs[k].Bytes
	}
	if (to-from)*bytes < earlyBytes {
		return
	}
	at := e.slots[slot]
	if at == nil || e.models[m] == nil {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
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
	if e.dev.Submit(s) != nil { // some may be under way: the batch copies them again, behind this record
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

// Abandon forgets what has arrived and waits until nothing reads the slot.
func (e *Executor) Abandon(m *device.Model, slot *device.Slot) {
	at := e.slots[slot]
	if at == nil {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if at.any {
		_ = e.dev.WaitFor(abandonMost, at.ended) // a device that fails says so to the next batch
	}
	at.model, at.any = nil, false
}

// gather adds to s what brings b's inputs to base: early rows are there already, or are copied there within the
// device; the others come from the slot. Compute waits for it. While a batch is under way that happens on the stream
// in, beside its compute; else there is nothing to be beside, and no event to pay for. e.mu is held.
func (at *place) gather(e *Executor, s *cuda.Submission, b device.Batch, base cuda.Address) {
	at.mu.Lock()
	defer at.mu.Unlock()
	in := e.compute
	if e.under > 0 {
		in = e.in
	}
	if at.any {
		s.Wait(in, at.ended) // also for rows of no use: their copies must not come later
	}
	for k := range b.Model.Inputs {
		for from := 0; from < b.Rows; {
			here := at.early(b.Model, k, from)
			to := from + 1
			for to < b.Rows && at.early(b.Model, k, to) == here {
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
	if in != e.compute {
		s.Record(in, at.brought)
		s.Wait(e.compute, at.brought)
	}
}

// early tells whether input k of a row of m was copied, or is on the way. at.mu is held.
func (at *place) early(m *device.Model, k, row int) bool {
	return at.any && at.model == m && at.rows[k*m.BatchMax+row]
}

// forget ends what is known of early rows: their batch was submitted, or will never be.
func (at *place) forget() {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.model, at.any = nil, false
}
