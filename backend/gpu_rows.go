package backend

import (
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
)

// collectInputs waits for the inputs of an order and puts them together. It reports whether any request is left.
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

// mayBegin says whether an order may begin now: the GPU is well, the link that sent it is there, and somebody can
// use what comes out. A batch begins as soon as its inputs are there, even before Start: its rows are final, so
// the GPU could only idle until then, and what the fetch took less than the scheduler allowed for goes to the
// deadlines (decision 0040).
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

// usualTime is what a batch takes as a rule.
func usualTime(m *device.Model, rows int) time.Duration { return limits.Usual(m.Profile.Exec(rows)) }

// awaitRows returns when every row is there or has failed, or when to wait longer is of no use. What does not come until
// the batch should start is not waited for until it must: a frontend whose reads are overdue then is suspect, and its
// rows fail.
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

		// Past the limit a batch goes on with the rows that it has; without any it waits while one could be of
		// use.
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

// cancelFetch gives up what has not been read. It reports whether nothing is under way any more.
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
		o.noteArrived() // instead of fetch, which will not come
		return true
	}

	// Reads that are under way are given up; what has landed already stays.
	if o.planned.Load() {
		for _, gr := range o.groups {
			if !gr.over.Load() {
				gr.source.withdrawGroup(gr)
			}
		}
	}
	return o.fetched.Load() != 0
}

// gatherRows sees that the rows of the batch lie together, leaving out those that could not be fetched.
// It reports whether any row is left.
func (g *gpu) gatherRows(o *order) bool {
	over := o.fetched.Load() != 0 || g.cancelFetch(o)
	missing := 0

	for i := range o.items {
		it := &o.items[i]
		it.late = o.isAwaited(it) // asked first: what arrives now counts as arrived
		if it.row = int32(i); !o.isThere(it) {
			it.reason = model.InputUnavailable
			missing++
		}
	}

	o.run, o.rows = o.slot, len(o.items)-missing
	if missing == 0 || o.rows == 0 {
		return o.rows > 0
	}

	// Rows are closed up in the slot that they landed in, unless something may still be written there.
	if !over && !g.findRoom(o) {
		o.failRest(model.InputUnavailable)
		return false
	}

	// The executor may already copy rows from where they are about to move.
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

// findRoom sees that a batch some of whose rows are late can run: in another slot, since its own may still be written
// to, or if there is none, in its own once the late reads have been given up.
func (g *gpu) findRoom(o *order) bool {
	if o.run = g.takeSlot(); o.run != nil {
		return true
	}

	// Suspect frontends' reads are given up, which frees the slot.
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

		// A packed row says its own length: one without is a row that the model did not answer.
		if _, ok := device.Packed(o.run.OutputRow(o.model, 0, int(it.row))); !ok {
			it.reason = model.ExecutionFailed
		}
	}
}
