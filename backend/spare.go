package backend

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/wire"
)

// SpareWork is work of this backend that has no deadline: the scheduler orders its steps, one at a time, on GPUs that no
// request can miss meanwhile (docs/decisions/0170). Its methods may be called from any goroutine.
type SpareWork struct {
	b      *Backend
	number uint32
	run    func(limit time.Duration)
	orders chan spareOrder
	busy   atomic.Bool // a step is waiting or under way

	mu    sync.Mutex
	offer wire.SpareOffer // what the scheduler knows, or is told when a session opens; Step 0: nothing
}

// spareOrder is a step that was ordered.
type spareOrder struct {
	wire.SpareStart
	begin time.Duration // on the backend's clock
}

// spareLast is how long Close waits for a step that is under way: one that hangs keeps nobody.
const spareLast = 5 * time.Second

// NewSpareWork returns spare work that offers nothing yet. run does one step; it is called from one goroutine, pinned to
// the core that the step was ordered on if there is one, and should return within the limit: batches may be planned for
// the GPU from then on. The work ends with the backend.
func (b *Backend) NewSpareWork(name string, run func(limit time.Duration)) *SpareWork {
	b.mu.Lock()
	w := &SpareWork{b: b, number: uint32(len(b.spares)), run: run, orders: make(chan spareOrder, 1)}
	w.offer = wire.SpareOffer{Work: w.number, Name: name[:min(len(name), wire.NameBytesMax)]}
	b.spares = append(b.spares, w)
	b.mu.Unlock()

	b.spareLoops.Add(1)
	go w.serveSteps()
	return w
}

// Offer says how long a step takes at most, as a rule, and the work's part of the spare time beside other work. It also
// lets work go on that the scheduler has suspended.
func (w *SpareWork) Offer(step time.Duration, weight float64) {
	w.mu.Lock()
	w.offer.Step, w.offer.Weight = int64(step), weight
	w.mu.Unlock()
	w.tellOffer()
}

// Withdraw asks for no steps until the next Offer.
func (w *SpareWork) Withdraw() { w.Offer(0, 0) }

// tellOffer tells the scheduler, if it is connected; a session that opens later is told then.
func (w *SpareWork) tellOffer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.b.linkNow(); l != nil {
		if err := l.OfferSpare([]wire.SpareOffer{w.offer}); err != nil {
			w.b.log.Debug("spare work not offered", "err", err)
		}
	}
}

// tellSpareWork tells a session that has just opened what spare work there is.
func (b *Backend) tellSpareWork() {
	b.mu.Lock()
	all := slices.Clone(b.spares)
	b.mu.Unlock()
	for _, w := range all {
		w.mu.Lock()
		offers := w.offer.Step != 0
		w.mu.Unlock()
		if offers {
			w.tellOffer()
		}
	}
}

// Spare takes steps. A work that is still at an earlier one, which the scheduler has given up, answers at once.
func (b *Backend) Spare(steps []wire.SpareStart) {
	now := b.now()
	for _, s := range steps {
		b.mu.Lock()
		var w *SpareWork
		if int(s.Work) < len(b.spares) && int(s.GPU) < len(b.gpus) {
			w = b.spares[s.Work]
		}
		b.mu.Unlock()

		if w == nil {
			b.log.Error("step of spare work refused", "work", s.Work, "gpu", s.GPU)
			continue
		}
		if w.busy.Swap(true) {
			b.tellEnd(s.Number)
			continue
		}
		w.orders <- spareOrder{s, now + time.Duration(s.Start)} // has room for the one
	}
}

// tellEnd tells that a step has ended.
func (b *Backend) tellEnd(number uint64) {
	if l := b.linkNow(); l != nil {
		if err := l.EndSpare([]wire.SpareEnd{{Number: number}}); err != nil {
			b.log.Debug("end of a step not sent", "err", err)
		}
	}
}

// serveSteps is the goroutine that runs the steps.
func (w *SpareWork) serveSteps() {
	defer w.b.spareLoops.Done()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	core := -1
	for {
		select {
		case <-w.b.stop:
			return
		case o := <-w.orders:
			if next := w.b.gpus[o.GPU].core; next >= 0 && next != core {
				core = next
				if err := pinThread(core); err != nil {
					w.b.log.Debug("spare work is not pinned", "core", core, "err", err)
				}
			}
			w.runStep(o)
		}
	}
}

// runStep runs one step when its GPU is free.
func (w *SpareWork) runStep(o spareOrder) {
	if wait := o.begin - w.b.now(); wait > 0 {
		time.Sleep(wait)
	}

	began := w.b.now()
	w.run(time.Duration(o.Step))
	late := w.b.now()-began > time.Duration(o.Step)
	w.busy.Store(false) // before: the next order follows the end at once
	w.b.tellEnd(o.Number)

	// The scheduler may have given a late step up, and with it the work.
	if late {
		w.tellOffer()
	}
}

// awaitSpare returns when no step runs any more, or one hangs.
func (b *Backend) awaitSpare() {
	ended := make(chan struct{})
	go func() {
		b.spareLoops.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(spareLast):
		b.log.Error("a step of spare work does not end")
	}
}
