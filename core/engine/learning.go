package engine

import (
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
	only   uint32      // the only GPU that runs its steps, as an index plus one; 0: any
	gpu    sched.GPUID // that GPU, as the rankers know it
	subs   []uint32    // the sub-clusters whose rankers know it
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

	return b.e.runInRegistry(func() {
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

		t := e.beginTurn(&b.spare)
		r := e.ranker(u.sub)
		r.enter(t)
		end := t.now.Add(boundReported(m[i].FreeIn))
		if r.s.EndSpare(t.now, u.id, u.epoch, end) != nil {
			e.straySteps.Add(1) // the ranker stopped waiting for it
		}

		// The page draws steps beside batches.
		if r.steps == nil {
			r.steps = new(ring)
		}
		r.steps.add(Ran{GPU: uint32(u.id), Start: sched.Time(u.stepStarts.Load()), End: end})
		r.advance(e, t)
		r.mu.Unlock()
		e.finishTurn(t)
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
