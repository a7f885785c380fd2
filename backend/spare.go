package backend

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"downbeat.dev/core/wire"
)

// SpareWork is work of this backend without a deadline. The scheduler orders its steps, one at a time, on GPUs that
// no request needs meanwhile (docs/decisions/0170). Its methods may be called from any goroutine.
type SpareWork struct {
	b      *Backend
	number uint32
	run    func(limit time.Duration) (after func())
	orders chan spareOrder

	mu      sync.Mutex
	busy    bool            // a step is waiting or running
	offer   wire.SpareOffer // as known to the scheduler, or sent when a session opens; Step 0: none
	value   float64         // of a second of GPU time to the work
	renewed bool            // the weight has changed during a step: the offer follows its end
	skipped []uint64        // orders that arrived during a step
}

// spareOrder is an ordered step.
type spareOrder struct {
	wire.SpareStart
	begin time.Duration // on the backend's clock
}

// SpareStepMost is the longest step that a scheduler orders.
const SpareStepMost = 10 * time.Millisecond

// spareLast is how long Close waits for a running step.
const spareLast = 5 * time.Second

// NewSpareWork returns spare work that offers nothing yet. run does one step. It is called from one goroutine, pinned
// to the core of the step's GPU if it has one, and should return within the limit: batches may be planned for the GPU
// from then on. If it returns a function, the offer is withdrawn and the function is called without a GPU; it may
// offer the work again. The work ends with the backend.
func (b *Backend) NewSpareWork(name string, run func(limit time.Duration) (after func())) *SpareWork {
	b.mu.Lock()
	w := &SpareWork{b: b, number: uint32(len(b.spares)), run: run, orders: make(chan spareOrder, 1)}
	w.offer = wire.SpareOffer{Work: w.number, Name: name[:min(len(name), wire.NameBytesMax)]}
	b.spares = append(b.spares, w)
	b.mu.Unlock()

	b.spareLoops.Add(1)
	go w.serveSteps()
	return w
}

// Offer states how long a step takes, as an upper bound that normally holds, and what a second of GPU time is worth to
// the work, in any unit. By its value it has a share of the spare time among this backend's other work (WeighSpareWork), since steps
// run on their own backend's GPUs only. Offer also resumes work that the scheduler has suspended.
func (w *SpareWork) Offer(step time.Duration, value float64) {
	w.b.spareWeights.Lock()
	defer w.b.spareWeights.Unlock()
	w.mu.Lock()
	w.offer.Step, w.value = int64(step), value
	if step == 0 {
		w.offer.Weight = 0
	}
	w.mu.Unlock()

	w.b.weighSpareWork(w)
	w.tellOffer()
}

// PinTo restricts the steps to one of the backend's GPUs, by its index, from the next Offer on.
func (w *SpareWork) PinTo(gpu int) {
	// The only GPU has them anyway, also from a scheduler that knows no pinned work.
	if len(w.b.gpus) == 1 {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.offer.GPU = uint32(gpu + 1)
}

// Withdraw requests no steps until the next Offer.
func (w *SpareWork) Withdraw() { w.Offer(0, 0) }

// tellOffer sends the offer to the scheduler, if connected; otherwise the next session sends it.
func (w *SpareWork) tellOffer() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.b.linkNow(); l != nil {
		if err := l.OfferSpare([]wire.SpareOffer{w.offer}); err != nil {
			w.b.log.Debug("spare work not offered", "err", err)
		}
	}
}

// tellSpareWork sends all offers to a new session.
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

// Spare receives steps. A step that arrives during an earlier one, which the scheduler has given up, is not run: its
// end is reported with the earlier one's, so that no further order comes before.
func (b events) Spare(steps []wire.SpareStart) {
	now := b.now()
	for _, s := range steps {
		// Numbers come from the scheduler: check them.
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
		if w.mayBegin(s.Number) {
			w.orders <- spareOrder{s, now + time.Duration(s.Start)} // has room for one
		}
	}
}

// mayBegin reports whether an order may run. If there is a step already, its end is reported with the step's.
func (w *SpareWork) mayBegin(number uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy {
		w.skipped = append(w.skipped, number)
		return false
	}

	w.busy = true
	return true
}

// reportEnds reports the ends of a step and of the orders that were not run meanwhile, and returns whether there were any.
func (w *SpareWork) reportEnds(number uint64) (skippedAny bool) {
	// Taken together, so that each order runs or is among those skipped. Before the report: the next order follows it at once.
	w.mu.Lock()
	w.busy = false
	skipped := w.skipped
	w.skipped = nil
	w.mu.Unlock()

	w.b.tellEnd(number)
	for _, number := range skipped {
		w.b.tellEnd(number)
	}

	return len(skipped) > 0
}

// tellEnd reports that a step has ended.
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

	// The thread moves to the core of the GPU whose step it runs.
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
			w.runOrder(o)
		}
	}
}

// runOrder runs one step when its GPU is free, unless the backend closes before.
func (w *SpareWork) runOrder(o spareOrder) {
	if wait := o.begin - w.b.now(); wait > 0 && !w.b.peers.sleepFor(wait) {
		return
	}

	after := w.run(time.Duration(o.Step))
	late := w.b.now() > o.begin+time.Duration(o.Step) // a short step that began late, too
	if after != nil {
		w.endWithPause(o, after)
		return
	}

	// The scheduler may have given up a late step, and with it the work.
	if w.reportEnds(o.Number) || late || w.takeRenewed() {
		w.tellOffer()
	}
}

// endWithPause ends a step and the offer, and calls after.
func (w *SpareWork) endWithPause(o spareOrder, after func()) {
	w.Withdraw()
	w.reportEnds(o.Number)
	after()
}

// awaitSpare returns when no step runs any more, or after spareLast.
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
