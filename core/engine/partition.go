package engine

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// partition is one lock and the models under it.
type partition struct {
	number uint32
	loop   *Loop
	wake   atomic.Int64 // sched.Time at which Advance is due; written under mu
	waits  atomic.Bool  // a change of outlook matters to it; written under mu

	mu         lock
	latest     sched.Time       // the latest time of any turn here
	s          *sched.Partition // mu guards this and everything below
	windows    []idWindow       // by the low bits of the session's number
	live       int              // requests queued
	liveMax    int
	batches    []flight
	idle       []uint32 // unused places in batches
	models     []modelCount
	recent     ring
	strays     uint64            // Done messages for batches not in flight
	unknown    uint64            // submissions for models that do not exist
	duplicates uint64            // submissions of ids that are queued already
	lost       [][]sched.Request // memory of lost batches that a turn may still read, see reclaim
	begun      uint64            // turns that took orders here,
	told       atomic.Uint64     // and those that have delivered theirs; not under mu
	gens       *rand.ChaCha8     // nil in virtual time, where batches are numbered alike in each run
	watched    sched.Time        // time of the watchdog's last look; only housekeeping uses it
	leastTrip  sched.Duration    // the least time that an order takes to any backend; 0: unknown
	homes      []uint32          // by model: its sub-cluster, or severalHomes + a place in several
	several    [][]uint32        // the sub-clusters of models with several homes, each list once
	spread     []spreadSub       // the sub-clusters in several
	families   []*answers        // by model id; nil, or missing: it is no family
	overruns   []*overrun        // by sub-cluster; nil: use the first, which has no samples
	latestOf   []latestOverrun   // by place in several
	judged     uint64            // changes of overruns and of several, from 1 on
}

func (p *partition) countOutcome(model uint32, why model.Reason) {
	if int(model) < len(p.models) {
		p.models[model].outcomes[why]++
	} else {
		p.unknown++
	}
}

// endQueued ends a queued request with an outcome.
func (p *partition) endQueued(t *turn, r *sched.Request, why model.Reason) {
	p.live--
	p.refuseRequest(t, r, sched.ReasonTold(r.Flags, why))
}

// refuseRequest ends a request that does not count as queued.
func (p *partition) refuseRequest(t *turn, r *sched.Request, why model.Reason) {
	p.countOutcome(uint32(r.Model), why)
	if int(r.Model) < len(p.models) {
		p.models[r.Model].ended++
	}
	t.outcomes = append(t.outcomes, outcome{r.Origin, wire.Outcome{ID: uint64(r.ID), Reason: why}})
}

// collectOutputs moves the outputs of the decisions into the turn, and sets the next wake-up. mu is held.
func (p *partition) collectOutputs(e *Engine, t *turn) {
	if p.s.Spread() {
		p.chooseHomes(e, t)
	}
	o := p.s.Outputs()

	for i := range o.Batches {
		b := &o.Batches[i]
		if p.startFlight(e, t, b) {
			continue
		}

		// The GPU has left or changed since the grant: its requests count as lost with it.
		for k := range b.Requests {
			b.Requests[k].Flags |= sched.WasLost
			p.requeueOrEnd(e, t, &b.Requests[k])
		}
	}

	for i := 0; i < len(o.Drops); i++ {
		d := &o.Drops[i]
		if d.Reason == model.DeadlineCannotBeMet && d.Flags&sched.WasLost == 0 {
			p.models[d.Model].countDrop(ruleOf(d))
		}
		p.endQueued(t, &d.Request, d.Reason)
	}

	// The scheduler reuses the outputs' memory, so the turn takes copies.
	t.candidates = append(t.candidates, o.Candidates...)
	t.frees = append(t.frees, o.Frees...)
	if len(o.Forecasts) > 0 {
		t.forecasts = append(t.forecasts, o.Forecasts...)
	}
	o.Reset()
	p.publishWakeUp(t.now)
}

// publishWakeUp publishes the partition's next wake-up and makes sure that its loop is awake by then.
func (p *partition) publishWakeUp(now sched.Time) {
	at := p.s.NextWake()

	// An unchanged wake-up is not stored: a store would cost other cores a cache miss.
	if sched.Time(p.wake.Load()) != at {
		p.wake.Store(int64(at))
		p.loop.wakeBy(at)
	}
}

// setService adds or changes a model, or a family with the ids of its variants' models. Queued requests and
// measurements stay.
func (p *partition) setService(e *Engine, t *turn, id uint32, s sched.Service, variants []uint32) error {
	for int(id) >= len(p.models) {
		p.models, p.homes = append(p.models, modelCount{}), append(p.homes, 0)
	}

	// A single home is the common case and needs no list.
	p.homes[id] = s.Homes[0]
	if len(s.Homes) > 1 {
		p.homes[id] = severalHomes + p.listHomes(s.Homes)
		p.watchHomes(e, s.Homes)
	}

	p.setVariants(id, variants)

	// A change keeps queued requests and measurements; only a new service is added.
	err := p.s.ChangeService(t.now, sched.ModelID(id), s)
	if errors.Is(err, sched.ErrUnknown) {
		err = p.s.AddService(t.now, sched.ModelID(id), s)
	}
	p.collectOutputs(e, t)
	return err
}
