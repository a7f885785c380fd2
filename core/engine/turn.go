package engine

import (
	"math/bits"
	"sync/atomic"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// turn carries the output of a visit to a partition: first to the rankers, then to the ports, and the rankers' grants
// back to the partitions. It belongs to one goroutine at a time and its memory is reused.
type turn struct {
	home       *spare
	now        sched.Time
	candidates []sched.Candidate
	frees      []sched.Free
	completes  []completion
	forecasts  []sched.Forecast // while there is spare work
	steps      []spareOrder
	grants     []sched.Grant
	looks      bool // an outlook has changed, see chooseHomes
	outcomes   []outcome
	orders     []order
	ordering   uint64  // bit set of the partitions whose orders it holds
	fetches    []int64 // fetch time per input of the batches done
	awaited    []completion
	cuts       []*Backend // backends whose watchdog fired
	sickened   []*gpu     // to be held back from now on
	recovered  []*gpu     // no longer held back

	outs []wire.Outcome // scratch of deliver
	ords []Order
}

type outcome struct {
	front uint32
	m     wire.Outcome
}

// order is a batch on its way to a backend.
type order struct {
	b *Backend
	m Order
}

type completion struct {
	g            *gpu
	batch        sched.BatchID
	freeAt       sched.Time
	failed, slow bool // every request of it failed; it took much longer than planned
	elsewhere    bool // it failed, and a working GPU in another sub-cluster serves its model
	unrun        bool // its requests ended before it ran, for a reason that does not lie with the GPU
}

// spare keeps the latest turn of one session or loop for its next visit, so that a visit does not allocate and shares
// no memory with other sessions.
type spare struct{ t atomic.Pointer[turn] }

// roundsMany is the number of rounds between partitions and rankers after which a turn reads the clock again.
const roundsMany = 8

func (e *Engine) beginTurn(home *spare) *turn { return e.beginAt(home, e.clock.Now()) }

func (e *Engine) beginAt(home *spare, now sched.Time) *turn {
	t := home.t.Swap(nil)
	if t == nil { // another goroutine of the same session has it
		t = e.turns.Get().(*turn)
	}
	t.home, t.now = home, now
	return t
}

// enter locks the partition and sets both the turn and the partition to the later of their times. Turns of several
// goroutines overtake each other. If partition and ranker judged a candidate at different times, a grant that one
// gives and the other returns could go back and forth for ever.
func (p *partition) enter(t *turn) {
	p.mu.Lock()
	t.now = max(t.now, p.latest)
	p.latest = t.now
}

// enter does the same for a ranker.
func (r *ranker) enter(t *turn) {
	r.mu.Lock()
	t.now = max(t.now, r.latest)
	r.latest = t.now
}

// finishTurn delivers a turn's messages until none is left, and stores the turn for reuse.
func (e *Engine) finishTurn(t *turn) {
	for round := 1; ; round++ {
		if len(t.candidates)+len(t.frees)+len(t.completes)+len(t.forecasts) > 0 {
			e.passToRankers(t)
		}
		if len(t.awaited) > 0 {
			e.endAwaited(t) // it may start steps, too
		}

		// Ports are called between visits, when no lock is held (I2).
		if len(t.outcomes) > 0 {
			e.deliverOutcomes(t)
		}
		if len(t.orders) > 0 {
			e.deliverOrders(t)
		}
		if len(t.steps) > 0 {
			e.deliverSteps(t)
		}
		if len(t.grants) == 0 {
			// Homes are chosen by the rankers' knowledge when no grant is in progress.
			if t.looks {
				e.visitWaiting(t)
			}
			if len(t.candidates)+len(t.frees)+len(t.forecasts)+len(t.outcomes)+len(t.orders) == 0 {
				break
			}
		}
		if round%roundsMany == 0 {
			// Time has passed since the visits began: continue with the present.
			t.now = max(t.now, e.clock.Now())
		}
		e.passToPartitions(t)
	}

	// Findings from under locks are logged and acted on without one.
	if len(t.sickened)+len(t.recovered) > 0 {
		e.logHealth(t)
	}
	for _, b := range t.cuts {
		b.port.Cut(errHung)
	}

	// A reused turn must not keep departed backends alive.
	clear(t.cuts)
	t.cuts = t.cuts[:0]
	if !t.home.t.CompareAndSwap(nil, t) {
		e.turns.Put(t)
	}
}

// passToRankers gives the turn's messages to the rankers and takes their grants.
func (e *Engine) passToRankers(t *turn) {
	for len(t.completes)+len(t.frees)+len(t.candidates)+len(t.forecasts) > 0 {
		r := e.ranker(t.nextSubCluster())
		r.enter(t)

		// Messages for other sub-clusters wait for the next round: one lock at a time (I1).
		keptC := t.completes[:0]
		for _, c := range t.completes {
			if c.g.sub != r.number {
				keptC = append(keptC, c)
				continue
			}
			r.judgeHealth(t, &c)                               // before: a trial that ends leaves its GPU free
			_ = r.s.Complete(t.now, c.batch, c.g.id, c.freeAt) // an error is counted there: a later batch's completion came first
		}
		t.completes = keptC

		// A GPU that a partition returns may be granted again before the lock is released.
		keptF := t.frees[:0]
		for i := range t.frees {
			if t.frees[i].SubCluster != r.number {
				keptF = append(keptF, t.frees[i])
				continue
			}
			r.s.Free(t.now, &t.frees[i])
		}
		t.frees = keptF

		kept := t.candidates[:0]
		for i := range t.candidates {
			if t.candidates[i].SubCluster != r.number {
				kept = append(kept, t.candidates[i])
				continue
			}
			r.s.Candidate(t.now, &t.candidates[i])
		}
		t.candidates = kept
		if len(t.forecasts) > 0 {
			t.takeForecasts(r)
		}

		r.advance(e, t)
		r.mu.Unlock()
	}
}

// nextSubCluster returns the sub-cluster of any remaining message.
func (t *turn) nextSubCluster() uint32 {
	switch {
	case len(t.completes) > 0:
		return t.completes[0].g.sub
	case len(t.frees) > 0:
		return t.frees[0].SubCluster
	case len(t.candidates) == 0:
		return t.forecasts[0].SubCluster
	}
	return t.candidates[0].SubCluster
}

// passToPartitions gives the grants to their partitions, taking each lock once.
func (e *Engine) passToPartitions(t *turn) {
	for len(t.grants) > 0 {
		p := e.partition(t.grants[0].Model)
		p.enter(t)
		p.prefetchGrants(e, t.grants)

		// Grants for other partitions wait for their turn: one lock at a time (I1).
		kept := t.grants[:0]
		for i := range t.grants {
			g := t.grants[i]
			if e.partition(g.Model) != p {
				kept = append(kept, g)
				continue
			}
			p.s.Grant(t.now, g)
		}
		t.grants = kept
		p.collectOutputs(e, t)
		p.mu.Unlock()
	}
}

// deliverOutcomes sends the outcomes, with one call per frontend.
func (e *Engine) deliverOutcomes(t *turn) {
	for i := range t.outcomes {
		front := t.outcomes[i].front
		if front == 0 {
			continue // sent with an earlier one
		}

		// A turn has few frontends: searching the rest again is cheaper than a map.
		t.outs = t.outs[:0]
		for k := i; k < len(t.outcomes); k++ {
			if t.outcomes[k].front == front {
				t.outs = append(t.outs, t.outcomes[k].m)
				t.outcomes[k].front = 0
			}
		}
		if f := e.frontend(front); f != nil {
			f.port.Outcomes(t.outs)
		}
	}
	t.outcomes = t.outcomes[:0]
}

// deliverOrders sends the batches, with one call per backend.
func (e *Engine) deliverOrders(t *turn) {
	for i := range t.orders {
		b := t.orders[i].b
		if b == nil {
			continue // sent with an earlier one
		}

		t.ords = t.ords[:0]
		for k := i; k < len(t.orders); k++ {
			x := &t.orders[k]
			if x.b == b {
				t.ords = append(t.ords, x.m)
				x.b = nil
			}
		}
		b.port.Execute(t.ords)
	}

	t.orders = t.orders[:0]

	// The ports have returned: reclaim may free the memory of lost batches.
	for ; t.ordering != 0; t.ordering &= t.ordering - 1 {
		e.parts[bits.TrailingZeros64(t.ordering)].told.Add(1)
	}
}
