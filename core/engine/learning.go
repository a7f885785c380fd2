package engine

import (
	"fmt"
	"slices"
	"sync/atomic"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Spare work: a backend offers steps that have a length and no deadline, the rankers of its GPUs decide when one may
// run (sched.SpareWork), and the backend reports its end. Without an offer no partition forecasts and no ranker looks
// for room.

// spareWork is work that one backend has offered.
type spareWork struct {
	number uint32 // the backend's number for it
	name   string
	step   sched.Duration
	weight float64
	subs   []uint32 // the sub-clusters whose rankers know it
}

// spareOrder is a step on its way to a backend.
type spareOrder struct {
	b *Backend
	m wire.SpareStart
}

const (
	// workNumbers is the number of spare works that a backend may have; the other bits of a WorkID identify the
	// backend.
	workNumbers = 1 << 16
	ownersMax   = 1 << 16
)

// workID is a ranker's name for a backend's spare work.
func workID(b *Backend, number uint32) sched.WorkID {
	return sched.WorkID(b.owner*workNumbers + number)
}

// OfferSpare takes or withdraws the backend's offers of spare work. An invalid offer is logged and ignored, as it
// harms no request. It returns false if the session is closed.
func (b *Backend) OfferSpare(m []wire.SpareOffer) bool {
	if b.closed.Load() {
		return false
	}

	return b.e.manage(func() {
		for i := range m {
			b.e.reg.offerSpare(b, &m[i])
		}
	}) == nil
}

// EndSpare takes the ends of steps. The end of a step that is not running is counted and ignored. It returns false if
// the session is closed.
func (b *Backend) EndSpare(m []wire.SpareEnd) bool {
	e := b.e
	if b.closed.Load() || e.closed.Load() {
		return false
	}

	for i := range m {
		// The number comes from the backend: it must be that of the latest step ordered on one of its own GPUs.
		u := e.gpu(gpuOfStep(m[i].Number))
		if u == nil || u.b != b || !u.step.CompareAndSwap(m[i].Number, 0) {
			e.straySteps.Add(1)
			continue
		}

		t := e.begin(&b.spare)
		r := e.ranker(u.sub)
		r.enter(t)
		end := t.now.Add(sane(m[i].FreeIn))
		if r.s.EndSpare(t.now, u.id, u.epoch, end) != nil {
			e.straySteps.Add(1) // the ranker stopped waiting for it
		}
		if r.steps == nil {
			r.steps = new(ring)
		}
		r.steps.add(Ran{GPU: uint32(u.id), Start: sched.Time(u.stepStarts.Load()), End: end})
		r.advance(e, t)
		r.mu.Unlock()
		e.finish(t)
	}

	return true
}

// A step's number: its GPU and a count.
const stepBits = 64 - 17

func gpuOfStep(number uint64) sched.GPUID { return sched.GPUID(number >> stepBits) }

// orderSteps records the steps that a ranker has started. Its lock is held.
func (r *ranker) orderSteps(e *Engine, t *turn, steps []sched.SpareStep) {
	for i := range steps {
		x := &steps[i]
		u := e.gpu(x.GPU)

		// A GPU that has left since is retired next, and its step is forgotten with it.
		if u == nil || u.epoch != x.Epoch || u.b.dead.Load() {
			continue
		}
		number := uint64(u.id)<<stepBits | e.steps.Add(1)&(1<<stepBits-1)
		u.step.Store(number)
		u.stepStarts.Store(int64(x.Start))
		u.stepEnds.Store(int64(x.End))
		t.steps = append(t.steps, spareOrder{u.b, wire.SpareStart{Number: number, Work: uint32(x.Work) % workNumbers, GPU: u.index,
			Start: int64(x.Start.Sub(t.now)), Step: int64(x.End.Sub(x.Start))}})
	}
}

// deliverSteps sends the steps to backends, one message for each, as they are few.
func (e *Engine) deliverSteps(t *turn) {
	for i := range t.steps {
		t.steps[i].b.port.Spare([]wire.SpareStart{t.steps[i].m})
	}
	clear(t.steps)
	t.steps = t.steps[:0]
}

// takeForecasts gives a ranker its models' forecasts. Its lock is held.
func (t *turn) takeForecasts(r *ranker) {
	kept := t.forecasts[:0]
	for _, f := range t.forecasts {
		if f.SubCluster != r.number {
			kept = append(kept, f)
			continue
		}
		r.s.Forecast(t.now, f)
	}
	t.forecasts = kept
}

// stepCounts is the step that a GPU is running, whatever its sub-cluster.
type stepCounts struct {
	step       atomic.Uint64 // its number; 0: none
	stepStarts atomic.Int64  // sched.Time, as planned
	stepEnds   atomic.Int64  // the same
}

// offerSpare makes a backend's spare work known to the rankers of its GPUs.
func (g *registry) offerSpare(b *Backend, o *wire.SpareOffer) {
	if b.dead.Load() {
		return
	}

	// An offer of a zero step withdraws the work.
	at := slices.IndexFunc(b.works, func(w *spareWork) bool { return w.number == o.Work })
	if o.Step == 0 {
		if at >= 0 {
			g.withdrawSpare(b, b.works[at], b.works[at].subs)
			b.works = slices.Delete(b.works, at, at+1)
		}
		return
	}

	if err := g.checkOffer(b, o); err != nil {
		g.e.log.Error("spare work refused", "backend", b.name, "work", o.Work, "err", err)
		return
	}

	w := &spareWork{number: o.Work}
	if at >= 0 {
		w = b.works[at]
	} else {
		b.works = append(b.works, w)
	}

	// A new offer goes to all rankers, so work that one of them has suspended continues.
	w.name = o.Name
	w.step, w.weight, w.subs = sched.Duration(o.Step), o.Weight, nil
	g.moveSpare(b)
}

// checkOffer refuses spare work that no ranker would take, and assigns the backend a number.
func (g *registry) checkOffer(b *Backend, o *wire.SpareOffer) error {
	switch {
	case o.Work >= workNumbers:
		return fmt.Errorf("number %d: want less than %d", o.Work, workNumbers)
	case o.Step < 0 || sched.Duration(o.Step) > sched.SpareStepMost:
		return fmt.Errorf("step %d ns: want 1 to %d", o.Step, sched.SpareStepMost)
	case !(o.Weight > 0 && o.Weight <= 1e6):
		return fmt.Errorf("weight %v: want above 0 and at most 1e6", o.Weight)
	case b.owner != 0:
		return nil
	}

	// Numbers of departed backends are free again.
	for owner := uint32(1); owner < ownersMax; owner++ {
		if !slices.ContainsFunc(g.backends, func(x *Backend) bool { return x.owner == owner }) {
			b.owner = owner
			return nil
		}
	}

	return fmt.Errorf("%d backends have some already", ownersMax-1)
}

// moveSpare offers a backend's spare work in the sub-clusters where its GPUs are now, and withdraws it where none is
// left.
func (g *registry) moveSpare(b *Backend) {
	if len(b.works) == 0 {
		return
	}

	subs, fresh := b.subClusters(), !g.foretelling
	for _, w := range b.works {
		left := slices.DeleteFunc(slices.Clone(w.subs), func(sub uint32) bool { return slices.Contains(subs, sub) })
		g.withdrawSpare(b, w, left)
		for _, sub := range subs {
			if !slices.Contains(w.subs, sub) {
				fresh = g.offerTo(b, w, sub) || fresh
			}
		}
		w.subs = subs
	}

	// The ranker ignored forecasts while it had no spare work: its GPUs run steps only after it has received fresh
	// ones.
	if fresh {
		g.setForecasting()
	}

	for _, sub := range subs {
		g.ownGPUs(b, sub)
	}
}

// subClusters returns the sub-clusters of a backend's GPUs, in the GPUs' order.
func (b *Backend) subClusters() (subs []uint32) {
	for _, u := range b.gpus {
		if u != nil && !slices.Contains(subs, u.sub) {
			subs = append(subs, u.sub)
		}
	}

	return subs
}

// offerTo offers spare work to a sub-cluster's ranker. It reports whether it is the first there.
func (g *registry) offerTo(b *Backend, w *spareWork, sub uint32) (first bool) {
	r := g.e.ranker(sub)
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.s.HasSpare()

	// A turn at this ranker may have read the clock later.
	now := max(g.e.clock.Now(), r.latest)
	err := r.s.OfferSpare(now, sched.SpareWork{ID: workID(b, w.number), Step: w.step, Weight: w.weight, Owner: b.owner, Most: 1})
	if err != nil {
		g.e.log.Error("spare work refused", "backend", b.name, "work", w.number, "err", err)
	}

	return first
}

func (g *registry) withdrawSpare(b *Backend, w *spareWork, subs []uint32) {
	for _, sub := range subs {
		r := g.e.ranker(sub)
		r.mu.Lock()
		r.s.WithdrawSpare(max(g.e.clock.Now(), r.latest), workID(b, w.number))
		r.mu.Unlock()
	}
}

// ownGPUs lets a backend's GPUs in a sub-cluster run its steps, and starts some if there is room.
func (g *registry) ownGPUs(b *Backend, sub uint32) {
	r := g.e.ranker(sub)
	t := g.e.begin(&g.spare)
	r.enter(t)
	for _, u := range b.gpus {
		if u != nil && u.sub == sub {
			r.s.SetSpareOwner(u.id, b.owner)
		}
	}
	r.advance(g.e, t)
	r.mu.Unlock()
	g.e.finish(t)
}

// setForecasting makes partitions forecast while any backend has offered spare work, even if it has nothing to do at the
// moment, as learners often pause briefly. Each call brings a forecast of every model.
func (g *registry) setForecasting() {
	on := slices.ContainsFunc(g.backends, func(b *Backend) bool { return b.owner != 0 })
	if !on && !g.foretelling {
		return
	}

	// Old forecasts may be of models that have gone.
	if on && !g.foretelling {
		for _, r := range *g.e.rankers.Load() {
			r.mu.Lock()
			r.s.ForgetForecasts()
			r.mu.Unlock()
		}
	}

	g.foretelling = on
	for _, p := range g.e.parts {
		t := g.e.begin(&g.spare)
		p.enter(t)
		p.s.SetForecasts(t.now, on)
		p.collect(g.e, t)
		p.mu.Unlock()
		g.e.finish(t)
	}
}

// abandonSpare withdraws all offers of a departing backend.
func (g *registry) abandonSpare(b *Backend) {
	for _, w := range b.works {
		g.withdrawSpare(b, w, w.subs)
	}
	b.works, b.owner = nil, 0
	g.setForecasting()
}

// SpareExplanation describes spare work that a backend has offered.
type SpareExplanation struct {
	Name      string  `json:"name"`
	Backend   string  `json:"backend"`
	Step      float64 `json:"step_ms"` // upper bound as a rule
	Weight    float64 `json:"weight"`  // its share of the spare time among other work
	Suspended bool    `json:"suspended"`
}

func (g *registry) explainSpare() (all []SpareExplanation) {
	for _, b := range g.backends {
		for _, w := range b.works {
			x := SpareExplanation{Name: w.name, Backend: b.name, Step: float64(w.step) / 1e6, Weight: w.weight}
			for _, sub := range w.subs {
				r := g.e.ranker(sub)
				r.mu.Lock()
				x.Suspended = x.Suspended || r.s.Suspended(workID(b, w.number))
				r.mu.Unlock()
			}
			all = append(all, x)
		}
	}

	return all
}
