package engine

import (
	"sync"
	"sync/atomic"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// partition is one lock and the models under it.
type partition struct {
	number uint32
	loop   *Loop
	wake   atomic.Int64 // sched.Time at which Advance is due; written under mu

	mu      sync.Mutex
	latest  sched.Time       // of the turns that were here
	s       *sched.Partition // mu guards this and all below
	rows    []seats          // by the low bits of the session's number
	near    uint32           // see ahead
	live    int              // requests queued
	liveMax int
	batches []flight
	idle    []uint32 // unused places in batches
	models  []modelCount
	recent  ring
	strays  uint64            // Done messages for batches that are not under way
	unknown uint64            // submissions for models that do not exist
	twins   uint64            // submissions of ids that are live already
	lost    [][]sched.Request // memory of lost batches: a turn may still read it, see reclaim
	begun   uint64            // turns that took orders from here,
	told    atomic.Uint64     // and those of them that have delivered theirs; not under mu
	resetM  uint32            // model being replaced +1: its requests are queued again
	overrun overrun
}

// flight is a batch under way.
type flight struct {
	id    sched.BatchID
	gen   uint32
	model uint32
	gpu   *gpu // nil: the place is unused
	sent  sched.Time
	ends  sched.Time // as planned
	until sched.Time // the watchdog
	// What was sent, to be queued again when the backend is lost, and the memory that it lies in. The port
	// reads both after the lock is released, so they are not written again before the batch is done.
	requests, piece []sched.Request
}

// A request's flags.
const (
	wasLost = 1 << 0 // a backend was lost with it once
	moved   = 1 << 1 // in a flight: its backend gave it back, reload has had it
	unrun   = 1 << 2 // with moved: before it ran
)

// A batch's number on the wire: partition, generation, place.
func (p *partition) wireID(place uint32) uint64 {
	return uint64(p.number)<<56 | uint64(p.batches[place].gen&0xffffff)<<32 | uint64(place)
}

// flightOf returns the flight that a Done of backend b speaks of, nil when there is none.
func (p *partition) flightOf(b *Backend, m *wire.Done) (*flight, uint32) {
	place := uint32(m.Batch)
	if int(place) >= len(p.batches) {
		return nil, 0
	}
	f := &p.batches[place]
	if f.gpu == nil || f.gpu.b != b || f.gpu.index != m.GPU || p.wireID(place) != m.Batch {
		return nil, 0
	}
	return f, place
}

// accept takes one request in or says why not.
func (p *partition) accept(now sched.Time, s *seats, m *wire.Submit) sched.Reason {
	place, mark := s.seat(m.ID)
	if *place == mark && p.s.Holds(sched.ModelID(m.Model), sched.RequestID(m.ID), s.number) {
		p.twins++
		return twin
	}
	if p.live == p.liveMax {
		p.count(m.Model, sched.QueueFull)
		return sched.QueueFull
	}
	budget := sched.Duration(min(m.Budget, sched.SLOLimit))
	due := now.Add(budget)
	r, why := p.s.Admit(now, sched.ModelID(m.Model), due-p.overrun.margin(budget), sched.Priority(m.Priority))
	if r == nil {
		p.count(m.Model, why)
		return why
	}
	r.ID, r.Origin, r.Flags, r.Due = sched.RequestID(m.ID), s.number, 0, dueAt(due)
	r.Key, r.Offset, r.Length = m.Input.Key, m.Input.Offset, m.Input.Length
	*place = mark
	p.live++
	return sched.ReasonNone
}

// twin is accept's answer for an id that is queued already: the first request's answer stands.
const twin = sched.ReasonCount

func (p *partition) count(model uint32, why sched.Reason) {
	if int(model) < len(p.models) {
		p.models[model].outcomes[why]++
	} else {
		p.unknown++
	}
}

// end ends a request that was queued, with an outcome.
func (p *partition) end(t *turn, r *sched.Request, why sched.Reason) {
	if r.Flags&wasLost != 0 && (why == sched.DeadlineCannotBeMet || why == sched.NoBackend || why == sched.DeadlinePast) {
		why = sched.BackendLost
	}
	p.live--
	p.refuse(t, r, why)
}

// refuse ends a request that is not counted as queued.
func (p *partition) refuse(t *turn, r *sched.Request, why sched.Reason) {
	p.count(uint32(r.Model), why)
	if int(r.Model) < len(p.models) {
		p.models[r.Model].ended++
	}
	t.outcomes = append(t.outcomes, outcome{r.Origin, wire.Outcome{ID: uint64(r.ID), Reason: uint8(why)}})
}

// collect moves what the decisions put out into the turn, and notes when to look again. mu is held.
func (p *partition) collect(e *Engine, t *turn) {
	o := p.s.Outputs()
	for i := range o.Batches {
		b := &o.Batches[i]
		if p.send(e, t, b) {
			continue
		}
		for k := range b.Requests {
			b.Requests[k].Flags |= wasLost
			p.again(e, t, &b.Requests[k])
		}
	}
	for i := 0; i < len(o.Drops); i++ {
		d := &o.Drops[i]
		if d.Reason == sched.UnknownModel && uint32(d.Model)+1 == p.resetM {
			continue // reset queues it again
		}
		p.end(t, &d.Request, d.Reason)
	}
	t.candidates = append(t.candidates, o.Candidates...)
	t.frees = append(t.frees, o.Frees...)
	o.Reset()
	p.rearm(t.now)
}

// rearm publishes the partition's next wake-up and sees that its loop is awake by then.
func (p *partition) rearm(now sched.Time) {
	at := p.s.NextWake()
	if sched.Time(p.wake.Load()) != at {
		p.wake.Store(int64(at))
		p.loop.kick(at)
	}
}

// send puts a batch under way, unless its GPU has gone meanwhile.
func (p *partition) send(e *Engine, t *turn, b *sched.Batch) bool {
	g := e.gpu(b.GPU)
	var model uint32
	ok := g != nil && g.epoch == b.Epoch && !g.b.dead.Load()
	if ok {
		model, ok = g.b.runs(b.Model)
	}
	if !ok {
		return false
	}
	place := p.place()
	f := &p.batches[place]
	f.id, f.model, f.gpu, f.sent = b.ID, uint32(b.Model), g, t.now
	f.ends = b.Finish
	f.until = b.Finish.Add(max(watchMin, 8*b.Finish.Sub(b.ExecAt)))
	f.requests, f.piece = b.Requests, b.Keep()
	p.live -= len(f.requests)
	t.orders = append(t.orders, order{b: g.b})
	o := &t.orders[len(t.orders)-1].m
	o.Batch, o.GPU, o.Model, o.Requests, o.sent = p.wireID(place), g.index, model, b.Requests, t.now
	o.Start, o.Latest = int64(b.ExecAt.Sub(t.now)), int64(b.Latest.Sub(t.now))
	if bit := uint64(1) << p.number; t.ordering&bit == 0 {
		t.ordering |= bit
		p.begun++
	}
	p.models[b.Model].batch(len(f.requests))
	g.batch.Store(uint64(b.ID))
	return true
}

// place returns an unused place in batches.
func (p *partition) place() uint32 {
	if len(p.idle) == 0 {
		p.batches = append(p.batches, flight{})
		p.idle = append(p.idle, uint32(len(p.batches)-1))
	}
	i := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	p.batches[i].gen++
	return i
}

// land frees the place of a flight.
func (p *partition) land(place uint32) {
	f := &p.batches[place]
	p.s.Release(f.piece)
	f.gpu, f.requests, f.piece = nil, nil, nil
	p.idle = append(p.idle, place)
}

// again queues a request anew that is counted as queued, or ends it.
func (p *partition) again(e *Engine, t *turn, r *sched.Request) {
	if e.frontend(r.Origin) == nil {
		p.end(t, r, sched.Canceled)
		return
	}
	due := t.now - t.now%microsecond + sched.Time(left(r.Due, t.now))*microsecond
	r.Deadline = due - p.overrun.margin(due.Sub(t.now))
	if why := p.s.Enqueue(t.now, *r); why != sched.ReasonNone {
		p.end(t, r, why)
	}
}

// unload queues a flight's requests again.
func (p *partition) unload(e *Engine, t *turn, f *flight) {
	for k := range f.requests {
		p.reload(e, t, f, k)
	}
}

// reload queues a flight's request k again.
func (p *partition) reload(e *Engine, t *turn, f *flight, k int) {
	p.models[f.model].sent--
	r := f.requests[k]
	r.Flags = wasLost
	s := p.seats(r.Origin)
	if s == nil {
		p.refuse(t, &r, sched.Canceled) // its session is gone
		return
	}
	place, mark := s.seat(uint64(r.ID))
	switch {
	case *place != mark: // a later request sat down there: its answer stands
	case p.live == p.liveMax:
		p.refuse(t, &r, sched.BackendLost)
	default:
		p.live++
		p.again(e, t, &r)
	}
}

// giveBack takes a request that its GPU did not answer and never will: others get it. One that ran gets one chance
// more only, since it may be what the GPU died of.
func (p *partition) giveBack(e *Engine, t *turn, f *flight, k int) {
	r := &f.requests[k]
	if r.Flags&unrun != 0 || r.Flags&wasLost == 0 {
		p.reload(e, t, f, k)
		return
	}
	// No backend answers it, nor will another try.
	p.models[f.model].sent--
	p.refuse(t, r, sched.BackendLost)
}

// done ends a batch that backend b reports. It reports whether the batch was under way.
func (p *partition) done(e *Engine, t *turn, b *Backend, m *wire.Done) bool {
	f, place := p.flightOf(b, m)
	if f == nil {
		p.strays++
		return false
	}
	c := &p.models[f.model]
	failed, back := uint64(0), false
	for _, x := range m.Failures {
		k := int(x.Index)
		switch {
		case k >= len(f.requests) || x.Reason == 0 || x.Reason >= uint8(sched.ReasonCount):
			continue
		case sched.Reason(x.Reason) != sched.BackendLost && sched.Reason(x.Reason) != sched.NoBackend:
			c.outcomes[x.Reason]++
		case f.requests[k].Flags&moved != 0:
			continue
		default:
			f.requests[k].Flags |= moved
			if sched.Reason(x.Reason) == sched.NoBackend {
				f.requests[k].Flags |= unrun
			}
			back = true
		}
		failed++
	}
	c.served += uint64(len(f.requests)) - min(failed, uint64(len(f.requests)))
	p.overrun.add(t.now, int64(t.now.Sub(f.ends)))
	t.fetches = append(t.fetches, m.Fetch/int64(len(f.requests)))
	freeAt, exec := t.now.Add(sane(m.FreeIn)), sane(m.Exec)
	t.completes = append(t.completes, completion{sub: f.gpu.sub, gpu: f.gpu.id, batch: f.id, freeAt: freeAt})
	f.gpu.busy.Add(int64(exec))
	f.gpu.batches.Add(1)
	f.gpu.batch.CompareAndSwap(uint64(f.id), 0)
	p.recent.add(Ran{GPU: uint32(f.gpu.id), Model: f.model, Size: uint32(len(f.requests)), Start: freeAt - sched.Time(exec), End: freeAt})
	if back {
		for k := range f.requests {
			if f.requests[k].Flags&moved != 0 {
				p.giveBack(e, t, f, k)
			}
		}
	}
	p.land(place)
	if back {
		p.collect(e, t)
	}
	return true
}

// sane is a span that a backend reports: a backend's mistake must not cost more than an hour.
func sane(ns int64) sched.Duration { return sched.Duration(max(0, min(ns, sched.SLOLimit))) }

// lose takes back every batch of backend b that is under way.
func (p *partition) lose(e *Engine, t *turn, b *Backend) {
	for k := range p.batches {
		f := &p.batches[k]
		if f.gpu == nil || f.gpu.b != b {
			continue
		}
		p.unload(e, t, f)
		p.lost = append(p.lost, f.piece)
		f.piece = nil
		p.land(uint32(k))
	}
}

// reclaim takes back the memory of lost batches once every turn that took orders has delivered them: no
// port reads it any more.
func (p *partition) reclaim() {
	if len(p.lost) > 0 && p.told.Load() == p.begun {
		for _, piece := range p.lost {
			p.s.Release(piece)
		}
		p.lost = nil
	}
}

// watch finds batches whose backend is silent for too long.
func (p *partition) watch(t *turn) {
	p.reclaim()
	for k := range p.batches {
		f := &p.batches[k]
		if f.gpu != nil && f.until < t.now && f.gpu.b.hung.CompareAndSwap(false, true) {
			t.cuts = append(t.cuts, f.gpu.b)
		}
	}
}

// purgeStep is how many requests purge looks at with the lock held.
const purgeStep = 4096

// purge ends the queued requests of a frontend that is gone, for the models from the given one on;
// it returns where to go on, 0 at the end.
func (p *partition) purge(t *turn, front uint32, from int) int {
	s := p.seats(front)
	if s == nil {
		return 0
	}
	looked := 0
	for m := from; m < len(p.models) && p.live > 0; m++ {
		if looked > purgeStep {
			return m
		}
		id := sched.ModelID(m)
		looked += 16 + p.s.Queued(id)
		p.s.CancelAll(t.now, id, front, func(*sched.Request) {
			p.count(uint32(m), sched.Canceled)
			p.models[m].ended++
			p.live--
		})
	}
	*s = seats{}
	return 0
}

// cancel withdraws a frontend's request and ends it; one in a batch is answered by its backend.
func (p *partition) cancel(t *turn, front uint32, m *wire.Cancel) {
	s := p.seats(front)
	if s == nil {
		return
	}
	r := sched.Request{ID: sched.RequestID(m.ID), Origin: front, Model: sched.ModelID(m.Model)}
	if place, mark := s.seat(m.ID); *place == mark && p.s.Cancel(t.now, r.Model, r.ID, front) {
		p.end(t, &r, sched.Canceled)
	}
}

// reset replaces a model, keeping its queued requests. m nil removes nothing but refuses new ones.
func (p *partition) reset(e *Engine, t *turn, id uint32, m sched.Model) error {
	for int(id) >= len(p.models) {
		p.models = append(p.models, modelCount{})
	}
	p.resetM = id + 1
	p.s.RemoveModel(t.now, sched.ModelID(id))
	err := p.s.AddModel(t.now, sched.ModelID(id), m)
	drops := p.s.Outputs().Drops
	for i := range drops {
		r := drops[i].Request
		switch {
		case uint32(r.Model) != id || drops[i].Reason != sched.UnknownModel:
		case err != nil:
			p.end(t, &r, sched.UnknownModel)
		default:
			p.again(e, t, &r)
		}
	}
	p.collect(e, t)
	p.resetM = 0
	return err
}
