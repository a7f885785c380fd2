package engine

import (
	"errors"
	"math/rand/v2"
	"sync"
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
	waits  atomic.Bool  // an outlook that changes matters to it; written under mu

	mu       sync.Mutex
	latest   sched.Time       // of the turns that were here
	s        *sched.Partition // mu guards this and all below
	rows     []seats          // by the low bits of the session's number
	near     uint32           // see ahead
	live     int              // requests queued
	liveMax  int
	batches  []flight
	idle     []uint32 // unused places in batches
	models   []modelCount
	recent   ring
	strays   uint64              // Done messages for batches that are not under way
	unknown  uint64              // submissions for models that do not exist
	twins    uint64              // submissions of ids that are live already
	lost     [][]sched.Request   // memory of lost batches: a turn may still read it, see reclaim
	begun    uint64              // turns that took orders from here,
	told     atomic.Uint64       // and those of them that have delivered theirs; not under mu
	gens     *rand.ChaCha8       // nil in virtual time: there batches are numbered alike in each run
	watched  sched.Time          // when the watchdog looked last
	homes    []uint32            // by model: its sub-cluster, or severalHomes
	several  map[uint32][]uint32 // by model: its sub-clusters, where there are several
	spread   []spreadSub         // the sub-clusters of these
	families map[uint32]*answers // by model id, of families
	overruns []*overrun          // by sub-cluster; nil: as the first, which has no samples
}

// accept takes one request in or says why not.
func (p *partition) accept(now sched.Time, s *seats, m *wire.Submit) model.Reason {
	// An id that is queued already is one request sent twice: the first one's answer stands.
	place, mark := s.seat(m.ID)
	if *place == mark && p.s.Holds(sched.ModelID(m.Model), sched.RequestID(m.ID), s.number) {
		p.twins++
		return twin
	}

	// Memory is bounded by the requests queued: what is beyond ends at once (I5).
	if p.live == p.liveMax {
		p.countOutcome(m.Model, model.QueueFull)
		return model.QueueFull
	}

	// The scheduler plans for a deadline that leaves room for batches that end late.
	budget := sched.Duration(min(m.Budget, sched.SLOLimit))
	due := now.Add(budget)
	r, why := p.s.Admit(now, sched.ModelID(m.Model), due-p.overrunOf(m.Model).margin(budget), sched.Priority(m.Priority))
	if r == nil {
		// Admit refuses it before it is queued: no drop will come that names the rule.
		if why == model.DeadlineCannotBeMet {
			p.models[m.Model].countDrop(ruleArrivedLate)
		}
		p.countOutcome(m.Model, why)
		return why
	}

	r.ID, r.Origin, r.Flags, r.Due = sched.RequestID(m.ID), s.number, 0, dueAt(due)
	r.Input = m.Input

	// The seat is taken only now: a request that was refused may be sent again with its id.
	*place = mark
	p.live++
	return model.ReasonNone
}

// twin is accept's answer for an id that is queued already: the first request's answer stands.
const twin = model.ReasonCount

func (p *partition) countOutcome(model uint32, why model.Reason) {
	if int(model) < len(p.models) {
		p.models[model].outcomes[why]++
	} else {
		p.unknown++
	}
}

// end ends a request that was queued, with an outcome.
func (p *partition) end(t *turn, r *sched.Request, why model.Reason) {
	p.live--
	p.refuseRequest(t, r, sched.ReasonTold(r.Flags, why))
}

// refuseRequest ends a request that is not counted as queued.
func (p *partition) refuseRequest(t *turn, r *sched.Request, why model.Reason) {
	p.countOutcome(uint32(r.Model), why)
	if int(r.Model) < len(p.models) {
		p.models[r.Model].ended++
	}
	t.outcomes = append(t.outcomes, outcome{r.Origin, wire.Outcome{ID: uint64(r.ID), Reason: why}})
}

// collect moves what the decisions put out into the turn, and notes when to look again. mu is held.
func (p *partition) collect(e *Engine, t *turn) {
	if p.s.Spread() {
		p.chooseHomes(e, t)
	}
	o := p.s.Outputs()

	for i := range o.Batches {
		b := &o.Batches[i]
		if p.send(e, t, b) {
			continue
		}

		// Its GPU has gone or changed since the grant: the requests count as lost with it.
		for k := range b.Requests {
			b.Requests[k].Flags |= sched.WasLost
			p.again(e, t, &b.Requests[k])
		}
	}

	for i := 0; i < len(o.Drops); i++ {
		d := &o.Drops[i]
		if d.Reason == model.DeadlineCannotBeMet && d.Flags&sched.WasLost == 0 {
			p.models[d.Model].countDrop(ruleOf(d))
		}
		p.end(t, &d.Request, d.Reason)
	}

	// The outputs' memory is the scheduler's and is written again: the turn takes copies.
	t.candidates = append(t.candidates, o.Candidates...)
	t.frees = append(t.frees, o.Frees...)
	if len(o.Forecasts) > 0 {
		t.forecasts = append(t.forecasts, o.Forecasts...)
	}
	o.Reset()
	p.rearm(t.now)
}

// rearm publishes the partition's next wake-up and sees that its loop is awake by then.
func (p *partition) rearm(now sched.Time) {
	at := p.s.NextWake()

	// A wake-up that stays costs no store that other cores would have to fetch.
	if sched.Time(p.wake.Load()) != at {
		p.wake.Store(int64(at))
		p.loop.kick(at)
	}
}

// setService makes a model known or changes it, or a family with the ids of the models that its variants are; what is queued and what was learned of it stay.
func (p *partition) setService(e *Engine, t *turn, id uint32, s sched.Service, variants []uint32) error {
	for int(id) >= len(p.models) {
		p.models, p.homes = append(p.models, modelCount{}), append(p.homes, 0)
	}

	// One home is the common case and is kept without a list.
	p.homes[id] = s.Homes[0]
	delete(p.several, id)
	if len(s.Homes) > 1 {
		if p.several == nil {
			p.several = map[uint32][]uint32{}
		}
		p.homes[id], p.several[id] = severalHomes, s.Homes
		p.watchHomes(e, s.Homes)
	}

	p.setVariants(id, variants)

	// A change keeps what is queued and learned; only a service that is new here is added.
	err := p.s.ChangeService(t.now, sched.ModelID(id), s)
	if errors.Is(err, sched.ErrUnknown) {
		err = p.s.AddService(t.now, sched.ModelID(id), s)
	}
	p.collect(e, t)
	return err
}
