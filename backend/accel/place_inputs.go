package accel

import (
	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/cuda"
)

// earlyBytes is the size from which a run of rows is worth a separate submission: the link moves it in about the time
// that enqueueing a copy takes.
const earlyBytes = 32 << 10

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
