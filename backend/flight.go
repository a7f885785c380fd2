package backend

import (
	"errors"
	"slices"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/sched"
)

// aheadMax is how many batches an executor has at a time that takes them ahead: one runs, one is behind it. Rows
// and order of what it has are settled, so there are no more than it takes to keep the GPU busy.
const aheadMax = 2

// serveAhead is one of the goroutines of a GPU that takes a batch while another runs. Each goes with an order
// from its turn to its reply; one at a time decides about the next.
func (g *gpu) serveAhead() {
	defer g.wait.Done()
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	r := newReplier(g)
	for o := g.take(); o != nil; o = g.take() {
		g.turn(o)
		var err error
		runs := g.collect(o, patience) && g.allow(o)
		if runs {
			err = g.submit(o)
		}
		g.decided()
		if runs && err == nil {
			<-o.lead
			err = g.ahead.Wait(o.work())
		}
		if runs && g.land(o, err) {
			o.release()
			continue
		}
		r.reply(o)
	}
}

// turn waits until it is time to decide about an order. While a batch runs that is when all its reads have ended
// and its deadlines leave that one the time that it may take; else what it has and whether it can run is better
// decided when the GPU is free.
func (g *gpu) turn(o *order) {
	for !g.sick() {
		g.mu.Lock()
		n, free := len(g.flying), g.freeAt
		g.mu.Unlock()
		if n == 0 || n < aheadMax && o.fetched.Load() != 0 && max(free, g.backend.now())+usually(o.model, len(o.items)) <= o.lastDeadline() {
			return
		}
		select {
		case <-o.ready:
		case <-g.freed:
		}
	}
}

// submit hands an order to the executor, or when that has no room beside the others, once they have ended.
func (g *gpu) submit(o *order) error {
	g.launch(o)
	err := g.ahead.Submit(o.work())
	if errors.Is(err, device.ErrBusy) {
		<-o.lead
		o.lead <- struct{}{} // for Wait
		err = g.ahead.Submit(o.work())
	}
	return err
}

// execute runs the batch. It reports whether the watchdog answered it meanwhile.
func (g *gpu) execute(o *order) (answered bool) {
	g.launch(o)
	return g.land(o, g.executor.Execute(o.work()))
}

// work is the order as the executor takes it.
func (o *order) work() device.Batch { return device.Batch{Model: o.model, Slot: o.run, Rows: o.rows} }

// launch notes that an order is about to be the executor's.
func (g *gpu) launch(o *order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying = append(g.flying, o)
	now := g.backend.now()
	g.freeAt = max(g.freeAt, now) + o.model.Profile.Exec(o.rows)
	if len(g.flying) == 1 {
		g.lead(now)
	}
}

// lead begins the time of the first of flying. g.mu is held.
func (g *gpu) lead(now time.Duration) {
	o := g.flying[0]
	l := o.model.Profile.Exec(o.rows)
	g.dueBy = now + max(hangMin, hangFactor*l)
	if len(g.flying) == 1 {
		g.freeAt = now + l
	}
	o.lead <- struct{}{}
}

// off notes that an order is not the executor's any more. It reports whether the watchdog answered it
// meanwhile; if so the caller still holds one claim on it.
func (g *gpu) off(o *order, now time.Duration) (answered bool) {
	g.mu.Lock()
	i := slices.Index(g.flying, o)
	g.flying = slices.Delete(g.flying, i, i+1)
	if answered = o.answered; !answered {
		o.began = max(o.began, g.landed) // behind another it began when that one had ended
	}
	switch {
	case i > 0: // refused, while the one before runs
		g.freeAt -= o.model.Profile.Exec(o.rows)
	case len(g.flying) > 0:
		g.lead(now)
		fallthrough
	default:
		g.landed = now
	}
	g.mu.Unlock()
	token(g.freed)
	return answered
}

// land ends an execution with its result. It reports whether the watchdog answered the order meanwhile.
func (g *gpu) land(o *order, err error) (answered bool) {
	b, now := g.backend, g.backend.now()
	lost := errors.Is(err, device.ErrLost)
	if lost && !g.lost.Swap(true) { // before the watchdog's verdict goes: nothing may be sent here in between
		b.log.Error("GPU lost: others get its requests, it serves nothing until the backend is started again", "gpu", g.name)
	}
	answered = g.off(o, now)
	if answered {
		if g.hung.Swap(false) && !lost {
			b.log.Warn("GPU answers again", "gpu", g.name)
		}
	} else {
		o.ended = now
		g.counts.busy.Add(int64(now - o.began))
	}
	if err == nil {
		if o.model.Varies && !answered {
			o.failUnanswered()
		}
		return answered
	}
	b.log.Error("batch failed", "gpu", g.name, "model", o.model.Name, "rows", o.rows, "err", err)
	reason := sched.ExecutionFailed
	if lost {
		reason = sched.BackendLost
	}
	if !answered {
		o.fail(reason)
	}
	return answered
}

// token puts a token into c, which has room for one, if there is none.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
