package sim

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// order is a batch, from Execute to its end.
type order struct {
	s    *backSession
	x    wire.Execute
	sent Time
	// As planned, on the checker's account.
	plannedStart Time
	plannedExec  Duration

	epoch       uint64 // that its scheduler led in
	life        int
	begin       Time
	end         Time // on the backend
	exec, fetch Duration
	told        bool // Done has been sent
	bad         []wire.ItemFailure
}

// dropOrders forgets what has not begun of the orders of a scheduler that is obeyed no more.
func (b *back) dropOrders() {
	c, s := b.c, b.session()

	// What has begun runs to its end: a GPU cannot be stopped. A life of -1 keeps the others from ending.
	b.running = slices.DeleteFunc(b.running, func(o *order) bool {
		if o.begin <= c.now || o.s == s {
			return false
		}
		o.life = -1
		return true
	})

	// The queues are planned anew from what still runs.
	for g := range b.freeAt {
		b.freeAt[g] = c.now
	}

	for _, o := range b.running {
		b.freeAt[o.x.GPU] = max(b.freeAt[o.x.GPU], o.end)
	}
}

// accept plans an order on its GPU, behind what is there.
func (b *back) accept(o *order) {
	c := b.c
	n := len(o.x.Items)
	switch {
	case b.dead:
		return
	case b.session() != o.s: // the scheduler is obeyed no more, or not yet
		c.happens(StaleOrder, int64(b.index), int64(o.x.Batch))
		return
	}
	c.check.obeyed(b, o)

	y := *o // the same message may come twice
	o = &y
	o.life = b.life

	free := &b.freeAt[o.x.GPU]
	table := b.hello.Models[o.x.Model].Profile
	o.exec = Duration(float64(table[n-1]) * b.beyond)
	if !c.calm {
		o.fetch = Duration(n) * c.within(0, c.o.Data)
		o.exec = Duration(float64(o.exec) * b.slow * (1 - c.o.ExecLess*c.rng.Float64() + c.o.ExecMore*c.rng.Float64()))
	}

	// A batch begins when its inputs are there and the GPU is free; a backend that is not eager also waits for its
	// planned start.
	o.begin = max(c.now.Add(o.fetch), *free, b.hung)
	if !c.o.Eager && !c.calm {
		o.begin = max(o.begin, c.now.Add(Duration(float64(o.x.Start)*b.tempo)))
	}

	// The latest deadline in the batch: after it nobody waits for any of its outputs. Budgets are in microseconds.
	last := Time(0)
	for i := range o.x.Items {
		last = max(last, c.now.Add(Duration(o.x.Items[i].Budget)*1000))
	}
	switch {
	case !b.holds(&o.x):
		b.giveBack(o)
	case b.broken[o.x.GPU]:
		b.failAll(o, model.ExecutionFailed, !b.old)
	case o.begin.Add(Duration(table[n-1]-table[n-1]/8)) > last: // nobody wants it any more
		b.failAll(o, model.DeadlineCannotBeMet, !b.old && c.chance(c.o.Untold))
	default:
		b.failSome(o)
	}

	c.check.begins(o, o.begin)
	o.end = o.begin.Add(o.exec)
	*free = o.end
	b.running = append(b.running, o)

	// Done may come before the batch's end: it says when the GPU will be free.
	if !c.calm && c.chance(c.o.Ahead) {
		c.at(max(c.now, o.end-Time(o.exec/2)), func() { b.report(o) })
	}
	c.at(o.end, func() { b.finishOrder(o) })
}

// failAll ends every request of a batch before it runs.
func (b *back) failAll(o *order, why model.Reason, untold bool) {
	o.exec, o.bad = 0, nil
	for i := range o.x.Items {
		o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: why, Untold: untold})
	}
	if untold {
		b.c.report.Faults[UntoldItem] += len(o.bad)
	}
}

// failSome ends some requests of a batch without an output: what cannot be read from its frontend, what the model
// cannot do, what the backend leaves to others.
func (b *back) failSome(o *order) {
	c := b.c
	if c.calm {
		return
	}

	for i := range o.x.Items {
		x := wire.ItemFailure{Index: uint32(i)}
		f := o.s.fronts[o.x.Items[i].Frontend]

		switch {
		case f != nil && f.f.dark > c.now:
			x.Reason, x.Untold = model.InputUnavailable, !b.old
		case c.chance(c.o.FailItem):
			x.Reason = [...]model.Reason{model.InputUnavailable, model.ExecutionFailed}[c.rng.IntN(2)]
			x.Untold = !b.old && c.chance(c.o.Untold)
			c.happens(FailedItem, int64(b.index), int64(x.Reason))
		case c.chance(c.o.GiveBack):
			x.Reason = [...]model.Reason{model.BackendLost, model.NoBackend}[c.rng.IntN(2)] // it ran, or not
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

// finishOrder ends an order: outputs go to the frontends, Done to the engine.
func (b *back) finishOrder(o *order) {
	c := b.c
	if o.life != b.life {
		return // it died with it
	}
	if o.end > c.now { // held up meanwhile
		c.at(o.end, func() { b.finishOrder(o) })
		return
	}

	b.running = slices.DeleteFunc(b.running, func(x *order) bool { return x == o })
	failures := make([]wire.ItemFailure, len(o.x.Items))
	for _, x := range o.bad {
		failures[x.Index] = x
	}

	// Outputs go straight to the frontends, even where the session with the scheduler has broken meanwhile.
	c.after(c.delay(&o.s.link), func() {
		for i := range o.x.Items {
			b.sendOutput(o.s.fronts[o.x.Items[i].Frontend], o.x.Items[i].ID, failures[i])
		}
	})

	b.report(o)
}

// sendOutput sends a request's output, or why there is none, to its frontend.
func (b *back) sendOutput(s *session, id uint64, x wire.ItemFailure) {
	c := b.c
	switch {
	case s == nil || comesBack(x):
	case s.f.dark > c.now && !c.calm:
		c.happens(LostOutput, int64(s.f.index), int64(id))
	case !c.calm && c.chance(c.o.LoseOutput):
		c.happens(LostOutput, int64(s.f.index), int64(id))
	default:
		s.f.endCall(id, x.Reason, false)
	}
}

// report sends Done, unless it was sent ahead.
func (b *back) report(o *order) {
	c := b.c
	if o.life != b.life || o.told {
		return
	}
	o.told = true
	if b.session() != o.s {
		return // its scheduler is obeyed no more
	}

	m := wire.Done{Batch: o.x.Batch, GPU: o.x.GPU, Fetch: int64(o.fetch), Exec: int64(float64(o.exec) * b.tempo), FreeIn: int64(max(0, o.end.Sub(c.now))), Failures: o.bad}
	s := o.s

	if b.old {
		m = c.recodeDone(m)
	}
	c.send(&s.link, toEngine, LostDone, c.o.LoseDone, func() {
		// The checker's accounts change before the engine's: Done may send the next batch at once.
		back := c.check.done(s, &m)
		if !s.h.Done([]wire.Done{m}) {
			c.check.fail("Done on an open session was refused")
		}
		c.check.late(back)
	})
}

// comesBack says whether the scheduler answers a request that failed so, or has others serve it.
func comesBack(x wire.ItemFailure) bool {
	return x.Untold || x.Reason == model.BackendLost || x.Reason == model.NoBackend
}
