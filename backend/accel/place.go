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
	rows  []bool        // of model: copied, or on the way
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
func (e *Executor) Arrived(m *device.Model, slot *device.Slot, from, to int) {
	if (to-from)*m.InBytes < earlyBytes {
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
		at.rows = append(at.rows[:0], make([]bool, m.BatchMax)...)
	}
	s := &at.sub
	s.Reset()
	for k := range m.Inputs {
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
	for i := from; i < to; i++ {
		at.rows[i] = true
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
	early := at.any && at.model == b.Model
	for from := 0; from < b.Rows; {
		here := early && at.rows[from]
		to := from + 1
		for to < b.Rows && (early && at.rows[to]) == here {
			to++
		}
		for k := range b.Model.Inputs {
			lo, hi := b.Model.Inputs[k].Span(from, to)
			dst := base + cuda.Address(lo)
			switch {
			case !here:
				s.CopyIn(in, dst, at.slot.Memory()[lo:hi])
			case !e.cfg.Movable:
				s.Copy(in, dst, at.memory.Address()+cuda.Address(lo), int64(hi-lo))
			}
		}
		from = to
	}
	if in != e.compute {
		s.Record(in, at.brought)
		s.Wait(e.compute, at.brought)
	}
}

// forget ends what is known of early rows: their batch was submitted, or will never be.
func (at *place) forget() {
	at.mu.Lock()
	defer at.mu.Unlock()
	at.model, at.any = nil, false
}
