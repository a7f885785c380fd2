package backend

import (
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
)

// collectInputs waits for the inputs of an order and gathers them. It reports whether any request is left.
func (g *gpu) collectInputs(o *order, patience *time.Timer) bool {
	switch {
	case o.session != g.backend.session.Load():
		o.failRest(model.BackendLost)
	case g.isSick():
		o.failRest(model.NoBackend)
	default:
		g.awaitRows(o, patience)
		return g.gatherRows(o)
	}
	g.cancelFetch(o)
	return false
}

// mayBegin reports whether an order may start now: the GPU works, the link that sent the order is up, and the outputs
// can still be of use. A batch starts as soon as its inputs are complete, even before Start: its rows are final, so
// waiting would only idle the GPU, and time saved in fetching goes to the deadlines (decision 0040).
func (g *gpu) mayBegin(o *order) bool {
	b := g.backend
	o.began = b.now()
	switch {
	case o.session != b.session.Load():
		o.failRest(model.BackendLost)
	case g.isSick():
		o.failRest(model.NoBackend)
	case o.began+usualTime(o.model, o.rows) > o.lastDeadline():
		o.failRest(model.DeadlineCannotBeMet)
	default:
		return true
	}
	return false
}

// usualTime is the usual duration of a batch.
func usualTime(m *device.Model, rows int) time.Duration { return limits.Usual(m.Profile.Exec(rows)) }

// awaitRows returns when every row has arrived or failed, or when waiting longer is useless. From the time at which
// the batch should start, it waits only until the latest start: a frontend whose reads are then overdue becomes
// suspect, and its rows fail.
func (g *gpu) awaitRows(o *order, patience *time.Timer) {
	limit, last := max(o.latest, o.start)+limits.StartGrace, o.lastDeadline()-o.model.Profile.Exec(1)
	for o.fetched.Load() == 0 {
		wake := min(limit, max(o.start, o.overdueAt()))
		if !o.planned.Load() {
			wake = min(limit, g.backend.now()+slotTries)
		}

		patience.Reset(wake - g.backend.now())
		select {
		case <-o.ready:
			return
		case <-patience.C:
		}

		now := g.backend.now()
		if now >= o.start {
			o.doubtOverdue(now)
		}

		// After the limit a batch runs with the rows that have arrived; without any it waits while one could still be
		// of use.
		switch {
		case now < limit:
		case o.anyRow() || now >= last:
			return
		default:
			limit = last
		}
	}
}

// anyRow reports whether some row has arrived.
func (o *order) anyRow() bool {
	for i := range o.items {
		if o.isThere(&o.items[i]) {
			return true
		}
	}
	return false
}

// cancelFetch gives up the rows that have not arrived. It reports whether no read is in progress any more.
func (g *gpu) cancelFetch(o *order) bool {
	g.mu.Lock()

	waits := o.slot == nil
	if waits {
		for i, other := range g.line {
			if other == o {
				g.line = append(g.line[:i], g.line[i+1:]...)
				break
			}
		}
	}
	g.mu.Unlock()

	if waits {
		o.noteArrived() // in place of fetchInputs, which will not run
		return true
	}

	// Reads in progress are given up; rows that have landed stay.
	if o.planned.Load() {
		for _, gr := range o.groups {
			if !gr.over.Load() {
				gr.source.withdrawGroup(gr)
			}
		}
	}
	return o.fetched.Load() != 0
}

// gatherRows moves the rows of the batch together, without those that could not be fetched. It reports whether any
// row is left.
func (g *gpu) gatherRows(o *order) bool {
	over := o.fetched.Load() != 0 || g.cancelFetch(o)
	missing := 0

	for i := range o.items {
		it := &o.items[i]
		it.late = o.isAwaited(it) // asked first: a row that arrives now counts as arrived
		if it.row = int32(i); !o.isThere(it) {
			it.reason = model.InputUnavailable
			missing++
		}
	}

	o.run, o.rows = o.slot, len(o.items)-missing
	if missing == 0 || o.rows == 0 {
		return o.rows > 0
	}

	// Rows are moved within their slot, unless a read may still write to it.
	if !over && !g.findRoom(o) {
		o.failRest(model.InputUnavailable)
		return false
	}

	// The executor may be copying rows that are about to move.
	if o.run == o.slot {
		o.recallRows()
	}

	to := 0
	for i := range o.items {
		it := &o.items[i]
		if it.reason != model.ReasonNone {
			continue
		}
		if o.run != o.slot || to != i {
			o.run.CopyRow(o.model, to, o.slot, i)
		}
		it.row = int32(to)
		to++
	}
	return true
}

// findRoom makes room for a batch with late rows: in another slot, because reads may still write to its own; or in
// its own after giving up the late reads, if no slot is free.
func (g *gpu) findRoom(o *order) bool {
	if o.run = g.takeSlot(); o.run != nil {
		return true
	}

	// Suspecting the frontends gives up their reads, which frees the slot.
	o.doubtLate()
	patience := time.NewTimer(o.lastDeadline() - g.backend.now())
	defer patience.Stop()
	select {
	case <-o.ready:
		o.run = o.slot
	case <-patience.C:
	}
	return o.run != nil
}

func (g *gpu) takeSlot() *device.Slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.slots)
	if n == 0 {
		return nil
	}
	s := g.slots[n-1]
	g.slots = g.slots[:n-1]
	return s
}

// failUnanswered ends the requests whose packed rows have no output.
func (o *order) failUnanswered() {
	for i := range o.items {
		it := &o.items[i]
		if it.reason != model.ReasonNone {
			continue
		}

		// A packed row contains its length; without one the model did not answer the row.
		if _, ok := device.Packed(o.run.OutputRow(o.model, 0, int(it.row))); !ok {
			it.reason = model.ExecutionFailed
		}
	}
}
