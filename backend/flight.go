package backend

import (
	"errors"
	"slices"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
)

// serveAhead is a goroutine of a GPU that accepts a batch while another runs; a GPU has several. Each handles an
// order from its turn to its reply; one at a time decides about the next.
func (g *gpu) serveAhead() {
	defer g.wait.Done()
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()

	r := newReplier(g)
	for o := g.takeOrder(); o != nil; o = g.takeOrder() {
		g.awaitTurn(o)

		var err error
		runs := g.collectInputs(o, patience) && g.mayBegin(o)
		if runs {
			err = g.submitOrder(o)
		}

		// From here on another goroutine may decide about the next batch, while this one runs.
		g.endDeciding()

		// The executor runs batches in order: the result comes when all earlier ones have ended.
		if runs && err == nil {
			<-o.lead
			err = o.route.executor.Wait(o.asBatch())
			if err != nil && o.route.can.OnHost { // it runs on the processor, whatever the state of the GPU
				err = g.isolateRows(o, err)
			}
		}

		if runs && g.landOrder(o, err) {
			o.releaseClaim()
			continue
		}

		r.replyTo(o)
	}
}

// awaitTurn waits for the time to decide about an order. While a batch runs, that is when all reads of the order have
// ended and its deadlines allow the running batch its usual time. Otherwise the decision is better made when the GPU
// is free.
func (g *gpu) awaitTurn(o *order) {
	for !g.isSick() {
		g.mu.Lock()
		n, free := len(g.flying), g.freeAt
		g.mu.Unlock()
		if n == 0 || n < limits.Ahead && o.fetched.Load() != 0 && max(free, g.backend.now())+usualTime(o.model, len(o.items)) <= o.lastDeadline() {
			return
		}
		select {
		case <-o.ready:
		case <-g.freed:
		}
	}
}

// submitOrder passes an order to the executor, or waits for the other batches to end if that has no room.
func (g *gpu) submitOrder(o *order) error {
	g.noteLaunch(o)
	err := o.route.executor.Submit(o.asBatch())
	if errors.Is(err, device.ErrBusy) {
		<-o.lead
		o.lead <- struct{}{} // makes Wait return
		err = o.route.executor.Submit(o.asBatch())
	}
	return err
}

// executeOrder runs the batch. It reports whether the watchdog has answered it meanwhile.
func (g *gpu) executeOrder(o *order) (answered bool) {
	g.noteLaunch(o)
	err := device.Execute(o.route.executor, o.asBatch())
	if err != nil {
		err = g.isolateRows(o, err)
	}
	return g.landOrder(o, err)
}

// asBatch returns the order as the executor takes it.
func (o *order) asBatch() device.Batch {
	return device.Batch{Model: o.model, Slot: o.run, Rows: o.rows}
}

// noteLaunch records that an order is about to go to the executor.
func (g *gpu) noteLaunch(o *order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying = append(g.flying, o)

	now := g.backend.now()
	g.freeAt = max(g.freeAt, now) + o.model.Profile.Exec(o.rows)
	if len(g.flying) == 1 {
		g.leadFlying(now)
	}
}

// leadFlying starts the time of the first of flying. g.mu is held.
func (g *gpu) leadFlying(now time.Duration) {
	o := g.flying[0]
	l := o.model.Profile.Exec(o.rows)

	// A batch counts as hanging from when it leads: earlier ones took the time before.
	g.dueBy = now + limits.Backend(l)
	if len(g.flying) == 1 {
		g.freeAt = now + l
	}
	o.lead <- struct{}{}
}

// noteOff records that an order has left the executor. It reports whether the watchdog has answered it meanwhile; if
// so the caller still holds one claim on it.
func (g *gpu) noteOff(o *order, now time.Duration) (answered bool) {
	g.mu.Lock()
	i := slices.Index(g.flying, o)
	g.flying = slices.Delete(g.flying, i, i+1)
	if answered = o.answered; !answered {
		o.began = max(o.began, g.landed) // it began when the one before it ended
	}

	// A refused order takes its planned time with it; otherwise the next one leads.
	switch {
	case i > 0: // refused while the one before runs
		g.freeAt -= o.model.Profile.Exec(o.rows)
	case len(g.flying) > 0:
		g.leadFlying(now)
		fallthrough
	default:
		g.landed = now
	}

	g.mu.Unlock()
	putToken(g.freed)
	return answered
}

// landOrder ends an execution with its result. It reports whether the watchdog has answered the order meanwhile.
func (g *gpu) landOrder(o *order, err error) (answered bool) {
	b, now := g.backend, g.backend.now()
	lost := errors.Is(err, device.ErrLost)
	if lost { // before the watchdog's verdict is reset: nothing may be sent to this GPU in between
		g.loseDevice()
	}

	// An order that the watchdog has answered is not answered again.
	answered = g.noteOff(o, now)
	if answered {
		if g.hung.Swap(false) && !lost {
			b.log.Warn("GPU answers again", "gpu", g.name)
		}
	} else {
		o.ended = now
		g.counts.busy.Add(int64(now - o.began))
	}

	g.noteResult(o, err)
	if err == nil {
		if o.bad != nil && !answered {
			o.failBad()
		}
		if o.model.Varies && !answered {
			o.failUnanswered()
		}
		if !answered {
			g.sampleRows(o)
		}
		return answered
	}

	// A batch of a lost GPU may run elsewhere; one that failed by itself would fail there too.
	reason := model.ExecutionFailed
	if lost {
		reason = model.BackendLost
	}

	if !answered {
		o.broken = reason == model.ExecutionFailed
		o.failRest(reason)
	}
	return answered
}

// loseDevice marks the GPU as lost, and the other lanes of its device with it: they would fail a batch each to find out.
func (g *gpu) loseDevice() {
	for _, other := range g.backend.gpus {
		same := other == g || g.device >= 0 && other.device == g.device
		if !same || other.lost.Swap(true) {
			continue
		}
		g.backend.log.Error("GPU lost: others get its requests, it serves nothing until the backend is started again", "gpu", other.name)

		// Whoever waits there for the end of a batch looks again.
		putToken(other.freed)
	}
}

// failingMin is how many consecutive batches must fail before their GPU counts as failing.
const failingMin = 8

// noteResult counts consecutive failed batches, and logs the first, some of the following, and the end.
func (g *gpu) noteResult(o *order, err error) {
	// The usual case takes no lock.
	if err == nil && g.inRow.Load() == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		if n := g.inRow.Swap(0); n >= failingMin {
			g.backend.log.Info("GPU runs batches again", "gpu", g.name, "failed", n)
		}
		return
	}

	n := g.inRow.Add(1)
	g.unsaid++
	if n == failingMin || time.Since(g.failSaid) > sayEvery {
		g.backend.log.Error("batches fail", "gpu", g.name, "model", o.model.Name, "rows", o.rows, "in_a_row", n, "since_last_line", g.unsaid, "err", err)
		g.failSaid, g.unsaid = time.Now(), 0
	}
}

// putToken puts a token into c, of capacity one, unless it has one.
func putToken(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
