package swarm

import (
	"slices"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// order is a batch, from Execute to its end.
type order struct {
	s    *backSession
	x    wire.Execute
	sent Time
	// The planned times, for the checker.
	plannedStart Time
	plannedExec  Duration
	deadlines    []int64 // of its requests, as far as the checker can know: a copy of a request may have its own

	epoch       uint64 // epoch in which its scheduler led
	life        int
	begin       Time
	end         Time // end on the backend
	exec, fetch Duration
	doneSent    bool // Done has been sent
	bad         []wire.ItemFailure
}

// dropOrders drops the batches that have not begun, of a scheduler that the backend no longer obeys.
func (b *back) dropOrders() {
	c := b.c

	// Batches that have begun run to their end, since a GPU cannot be stopped. A life of -1 keeps the dropped batches
	// from ending.
	b.running = slices.DeleteFunc(b.running, func(o *order) bool {
		if o.begin <= c.now || o.s.isObeyed() {
			return false
		}
		o.life = -1
		return true
	})

	// Compute the queues' ends again from the batches that still run.
	for g := range b.freeAt {
		b.freeAt[g] = c.now
	}

	for _, o := range b.running {
		b.freeAt[o.x.GPU] = max(b.freeAt[o.x.GPU], o.end)
	}
}

// acceptOrder queues an order on its GPU.
func (b *back) acceptOrder(o *order) {
	c := b.c
	n := len(o.x.Items)
	switch {
	case b.dead:
		return
	case !o.s.isObeyed(): // the backend does not obey this scheduler (yet, or any more)
		c.happens(StaleOrder, int64(b.index), int64(o.x.Batch))
		return
	}

	c.check.checkObeyed(b, o)
	c.check.checkHooks(o)

	y := *o // copy: the same message may arrive twice
	o = &y
	o.life = b.life
	b.drawTimes(o)

	// last is the latest deadline in the batch: after it no output is of use. Budgets are in microseconds.
	last := Time(0)
	for i := range o.x.Items {
		last = max(last, c.now.Add(Duration(o.x.Items[i].Budget)*1000))
	}

	usual := limits.Usual(Duration(b.hello.Models[o.x.Model].Profile[n-1]))
	switch {
	case !b.hasModel(&o.x):
		b.giveBack(o)
	case b.broken[o.x.GPU]:
		b.failAll(o, model.ExecutionFailed, !b.old)
	case o.begin.Add(usual) > last: // usually no output would be in time
		b.failAll(o, model.DeadlineCannotBeMet, !b.old && c.chance(c.o.Untold))
	default:
		b.failSome(o)
	}

	c.check.checkStart(o, o.begin)
	o.end = o.begin.Add(o.exec)
	b.freeAt[o.x.GPU] = o.end
	b.running = append(b.running, o)

	// Done may be sent before the batch ends, since it reports when the GPU will be free.
	if !c.calm && c.chance(c.o.Ahead) {
		c.at(max(c.now, o.end-Time(o.exec/2)), func() { b.sendDone(o) })
	}
	c.at(o.end, func() { b.finishOrder(o) })
}

// drawTimes draws how long an order's inputs and its batch take, and sets when the batch begins.
func (b *back) drawTimes(o *order) {
	c, n := b.c, len(o.x.Items)
	o.exec = Duration(float64(b.hello.Models[o.x.Model].Profile[n-1]) * b.beyond)
	if !c.calm {
		o.fetch = Duration(n) * c.within(0, c.o.Data)
		o.exec = Duration(float64(o.exec) * b.slow * (1 - c.o.ExecLess*c.rng.Float64() + c.o.ExecMore*c.rng.Float64()))
	}

	// A batch begins when its inputs are there and the GPU is free. A backend that is not eager also waits for the
	// planned start.
	o.begin = max(c.now.Add(o.fetch), b.freeAt[o.x.GPU], b.hungUntil)
	if !c.o.Eager && !c.calm {
		o.begin = max(o.begin, c.now.Add(Duration(float64(o.x.Start)*b.clockRate)))
	}
}

// failAll fails every request of a batch without running it.
func (b *back) failAll(o *order, why model.Reason, untold bool) {
	o.exec, o.bad = 0, nil
	for i := range o.x.Items {
		o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: why, Untold: untold})
	}
	if untold {
		b.c.report.Faults[UntoldItem] += len(o.bad)
	}
}

// failSome fails some requests of a batch: inputs that cannot be read from the frontend, failures of the model,
// requests that the backend gives back.
func (b *back) failSome(o *order) {
	c := b.c
	for i := range o.x.Items {
		if o.preparing(i) != nil {
			o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: model.InputUnavailable})
			c.happens(ReadEarly, int64(b.index), int64(o.x.Items[i].ID))
		}
	}

	if c.calm {
		return
	}

	for i := range o.x.Items {
		x := wire.ItemFailure{Index: uint32(i)}
		f := o.s.fronts[o.x.Items[i].Frontend]

		switch {
		case o.preparing(i) != nil: // has failed already
			continue
		case f != nil && f.f.darkUntil > c.now:
			x.Reason, x.Untold = model.InputUnavailable, !b.old
		case c.chance(c.o.FailItem):
			x.Reason = [...]model.Reason{model.InputUnavailable, model.ExecutionFailed}[c.rng.IntN(2)]
			x.Untold = !b.old && c.chance(c.o.Untold)
			c.happens(FailedItem, int64(b.index), int64(x.Reason))
		case c.chance(c.o.GiveBack):
			x.Reason = [...]model.Reason{model.BackendLost, model.NoBackend}[c.rng.IntN(2)] // the batch ran, or did not
			c.happens(GivenBack, int64(b.index), int64(x.Reason))
		default:
			continue
		}

		if x.Untold {
			c.report.Faults[UntoldItem]++
		}
		o.bad = append(o.bad, x)
	}
}

// finishOrder ends an order: it sends the outputs to the frontends and Done to the engine.
func (b *back) finishOrder(o *order) {
	c := b.c
	if o.life != b.life {
		return // the order died with the backend
	}

	if o.end > c.now { // delayed meanwhile
		c.at(o.end, func() { b.finishOrder(o) })
		return
	}

	b.running = slices.DeleteFunc(b.running, func(x *order) bool { return x == o })

	// Done lists failures by item; the outputs need them by index.
	failures := make([]wire.ItemFailure, len(o.x.Items))
	for _, x := range o.bad {
		failures[x.Index] = x
	}

	// Outputs go straight to the frontends, even if the session with the scheduler has broken meanwhile.
	c.after(c.drawDelay(&o.s.link), func() {
		for i := range o.x.Items {
			b.sendOutput(o.s.fronts[o.x.Items[i].Frontend], o.x.Items[i].ID, failures[i])
		}
	})

	b.sendDone(o)
}

// sendOutput sends a request's output, or the reason for its failure, to the frontend.
func (b *back) sendOutput(s *frontSession, id uint64, x wire.ItemFailure) {
	c := b.c
	switch {
	case s == nil || comesBack(x):
	case s.f.darkUntil > c.now && !c.calm:
		c.happens(LostOutput, int64(s.f.index), int64(id))
	case !c.calm && c.chance(c.o.LoseOutput):
		c.happens(LostOutput, int64(s.f.index), int64(id))
	default:
		if !s.f.keepsUnread(id, x.Reason) {
			s.f.endCall(id, x.Reason, false)
		}
	}
}

// sendDone sends Done, unless it was sent early.
func (b *back) sendDone(o *order) {
	c := b.c
	if o.life != b.life || o.doneSent {
		return
	}

	o.doneSent = true

	if !o.s.isObeyed() {
		return // the backend no longer obeys this scheduler
	}

	m := wire.Done{Batch: o.x.Batch, GPU: o.x.GPU, Fetch: int64(o.fetch), Exec: int64(float64(o.exec) * b.clockRate), FreeIn: int64(max(0, o.end.Sub(c.now))), Failures: o.bad}
	s := o.s

	if b.old {
		m = c.recodeDone(m)
	}
	c.send(&s.link, toEngine, LostDone, c.o.LoseDone, func() {
		// Update the checker before the engine: Done may send the next batch at once.
		back := c.check.beforeDone(s, &m)
		if !s.h.Done([]wire.Done{m}) {
			c.check.fail("Done on an open session was refused")
		}
		c.check.checkLate(back)
	})
}

// comesBack reports whether a request that failed this way returns to the scheduler, which answers it or queues it
// again.
func comesBack(x wire.ItemFailure) bool {
	return x.Untold || x.Reason == model.BackendLost || x.Reason == model.NoBackend
}
