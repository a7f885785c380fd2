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
	slab    slab
	batches []flight
	idle    []uint32 // unused places in batches
	models  []modelCount
	recent  ring
	strays  uint64 // Done messages for batches that are not under way
	unknown uint64 // submissions for models that do not exist
	twins   uint64 // submissions of ids that are live already
	touched uint32 // keeps load's first pass from being optimised away
	resetM  uint32 // model being replaced +1: its requests are queued again
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
	// What was sent, to be queued again when the backend is lost. The port reads items after the
	// lock is released, so they are not written again before the batch is done.
	items []wire.Item
	flags []uint16 // priority, wasLost and moved
}

const (
	wasLost = 1 << 8
	moved   = 1 << 9 // its backend gave it back: reload has had it
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
func (p *partition) accept(now sched.Time, front uint32, m *wire.Submit) sched.Reason {
	i, again := p.slab.take(front, m.ID)
	if i == noSlot {
		if again {
			p.twins++
			return twin
		}
		p.count(m.Model, sched.QueueFull)
		return sched.QueueFull
	}
	t := p.slab.at(i)
	t.deadline = now.Add(sched.Duration(min(m.Budget, sched.SLOLimit)))
	t.key, t.offset, t.length = m.Input.Key, m.Input.Offset, m.Input.Length
	t.model, t.priority = m.Model, m.Priority
	if why := p.enqueue(now, i, t); why != sched.ReasonNone {
		p.slab.drop(i)
		p.count(m.Model, why)
		return why
	}
	return sched.ReasonNone
}

// twin is accept's answer for an id that is queued already: the first request's answer stands.
const twin = sched.ReasonCount

func (p *partition) enqueue(now sched.Time, i uint32, t *slot) sched.Reason {
	t.margin = p.overrun.margin(t.deadline.Sub(now))
	return p.s.Enqueue(now, t.request(i))
}

// request is what the decisions know of the request in slot i.
func (t *slot) request(i uint32) sched.Request {
	return sched.Request{ID: requestID(i, t), Model: sched.ModelID(t.model), Priority: sched.Priority(t.priority), Deadline: t.deadline - sched.Time(t.margin)}
}

func (p *partition) count(model uint32, why sched.Reason) {
	if int(model) < len(p.models) {
		p.models[model].outcomes[why]++
	} else {
		p.unknown++
	}
}

// end ends a request with an outcome.
func (p *partition) end(t *turn, i uint32, why sched.Reason) {
	s := p.slab.at(i)
	if s.lost && (why == sched.DeadlineCannotBeMet || why == sched.NoBackend || why == sched.DeadlinePast) {
		why = sched.BackendLost
	}
	p.count(s.model, why)
	if int(s.model) < len(p.models) {
		p.models[s.model].ended++
	}
	t.outcomes = append(t.outcomes, outcome{s.front, wire.Outcome{ID: s.id, Reason: uint8(why)}})
	p.slab.drop(i)
}

// collect moves what the decisions put out into the turn, and notes when to look again. mu is held.
func (p *partition) collect(e *Engine, t *turn) {
	o := p.s.Outputs()
	for i := 0; i < len(o.Batches); i++ {
		p.send(e, t, &o.Batches[i])
	}
	for i := 0; i < len(o.Drops); i++ {
		d := o.Drops[i]
		s, k := p.slab.get(d.ID)
		if d.Reason == sched.UnknownModel && s.model+1 == p.resetM {
			continue // reset queues it again
		}
		p.end(t, k, d.Reason)
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

// send puts a batch under way. When its GPU has gone meanwhile, its requests are queued again.
func (p *partition) send(e *Engine, t *turn, b *sched.Batch) {
	g := e.gpu(b.GPU)
	var model uint32
	ok := g != nil && !g.b.dead.Load()
	if ok {
		model, ok = g.b.runs(b.Model)
	}
	if !ok {
		for _, id := range b.Requests {
			s, i := p.slab.get(id)
			s.lost = true
			p.again(e, t, i, s)
		}
		return
	}
	place := p.place()
	f := &p.batches[place]
	f.id, f.model, f.gpu, f.sent = b.ID, uint32(b.Model), g, t.now
	f.ends = b.Finish
	f.until = b.Finish.Add(max(watchMin, 8*b.Finish.Sub(b.ExecAt)))
	p.load(f, b.Requests)
	t.executes = append(t.executes, execute{b: g.b, m: wire.Execute{
		Batch: p.wireID(place), GPU: g.index, Model: model,
		Start: int64(b.ExecAt.Sub(t.now)), Latest: int64(b.Latest.Sub(t.now)), Items: f.items,
	}})
	p.models[b.Model].batch(len(b.Requests))
	g.batch.Store(uint64(b.ID))
}

// load moves a batch's requests from the slab into its flight. The first passes fetch the slots
// and their places in the index into the cache, all at once rather than one after the other.
func (p *partition) load(f *flight, ids []sched.RequestID) {
	touched := uint32(0)
	for _, id := range ids {
		touched += p.slab.at(uint32(id)).gen
	}
	for _, id := range ids {
		t := p.slab.at(uint32(id))
		touched += p.slab.bucket[p.slab.place(t.front, t.id)]
	}
	p.touched = touched
	f.items, f.flags = resize(f.items, len(ids)), resize(f.flags, len(ids))
	for k, id := range ids {
		s, i := p.slab.get(id)
		// Field by field: a whole Item would be put together on the stack and copied from there,
		// and the copy would wait for the stores.
		m := &f.items[k]
		m.Frontend, m.ID, m.Budget = s.front, s.id, int64(s.deadline.Sub(f.sent))
		m.Input.Key, m.Input.Offset, m.Input.Length = s.key, s.offset, s.length
		flag := uint16(s.priority)
		if s.lost {
			flag |= wasLost
		}
		f.flags[k] = flag
		p.slab.drop(i)
	}
}

// resize returns s with n elements of any content.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
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
	p.batches[place].gpu = nil
	p.idle = append(p.idle, place)
}

// again queues a request whose batch was lost, or ends it.
func (p *partition) again(e *Engine, t *turn, i uint32, s *slot) {
	if e.frontend(s.front) == nil {
		p.end(t, i, sched.Canceled)
		return
	}
	if why := p.enqueue(t.now, i, s); why != sched.ReasonNone {
		p.end(t, i, why)
	}
}

// unload queues a flight's requests again.
func (p *partition) unload(e *Engine, t *turn, f *flight) {
	for k := range f.items {
		p.reload(e, t, f, k)
	}
}

// reload queues a flight's request k again.
func (p *partition) reload(e *Engine, t *turn, f *flight, k int) {
	p.models[f.model].sent--
	m := &f.items[k]
	i, again := p.slab.take(m.Frontend, m.ID)
	if i == noSlot {
		if !again { // the slab is full; with again a later request of the same id stands
			p.forfeit(t, f, k)
		}
		return
	}
	s := p.slab.at(i)
	s.deadline, s.model = f.sent+sched.Time(m.Budget), f.model
	s.key, s.offset, s.length = m.Input.Key, m.Input.Offset, m.Input.Length
	s.priority, s.lost = uint8(f.flags[k]), true
	p.again(e, t, i, s)
}

// forfeit ends a flight's request k, which no backend answers.
func (p *partition) forfeit(t *turn, f *flight, k int) {
	m := &f.items[k]
	p.count(f.model, sched.BackendLost)
	p.models[f.model].ended++
	t.outcomes = append(t.outcomes, outcome{m.Frontend, wire.Outcome{ID: m.ID, Reason: uint8(sched.BackendLost)}})
}

// giveBack takes a request that its GPU did not answer and never will: others get it, but once only, since it
// may be what the GPU died of.
func (p *partition) giveBack(e *Engine, t *turn, f *flight, k int) {
	if f.flags[k]&wasLost == 0 {
		p.reload(e, t, f, k)
		return
	}
	p.models[f.model].sent--
	p.forfeit(t, f, k)
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
		case k >= len(f.items) || x.Reason == 0 || x.Reason >= uint8(sched.ReasonCount):
			continue
		case sched.Reason(x.Reason) != sched.BackendLost:
			c.outcomes[x.Reason]++
		case f.flags[k]&moved != 0:
			continue
		default:
			f.flags[k] |= moved
			back = true
		}
		failed++
	}
	c.served += uint64(len(f.items)) - min(failed, uint64(len(f.items)))
	p.overrun.add(t.now, int64(t.now.Sub(f.ends)))
	t.fetches = append(t.fetches, m.Fetch/int64(len(f.items)))
	freeAt := t.now.Add(sched.Duration(max(0, m.FreeIn)))
	t.completes = append(t.completes, completion{sub: f.gpu.sub, gpu: f.gpu.id, batch: f.id, freeAt: freeAt})
	f.gpu.busy.Add(m.Exec)
	f.gpu.batches.Add(1)
	f.gpu.batch.CompareAndSwap(uint64(f.id), 0)
	p.recent.add(Ran{GPU: uint32(f.gpu.id), Model: f.model, Size: uint32(len(f.items)), Start: freeAt - sched.Time(m.Exec), End: freeAt})
	if back {
		for k := range f.items {
			if f.flags[k]&moved != 0 {
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

// lose takes back every batch of backend b that is under way.
func (p *partition) lose(e *Engine, t *turn, b *Backend) {
	for k := range p.batches {
		f := &p.batches[k]
		if f.gpu == nil || f.gpu.b != b {
			continue
		}
		p.unload(e, t, f)
		f.items = nil // its port may still read them
		p.land(uint32(k))
	}
}

// watch finds batches whose backend is silent for too long.
func (p *partition) watch(t *turn) {
	for k := range p.batches {
		f := &p.batches[k]
		if f.gpu != nil && f.until < t.now && f.gpu.b.hung.CompareAndSwap(false, true) {
			t.cuts = append(t.cuts, f.gpu.b)
		}
	}
}

// purgeStep is how many slots purge looks at with the lock held.
const purgeStep = 4096

// purge ends the queued requests of a frontend that is gone, as far as they lie in the slots from
// the given one on; it returns where to go on, 0 at the end.
func (p *partition) purge(t *turn, front uint32, from uint32) uint32 {
	to := min(from+purgeStep, p.slab.used)
	for i := from; i < to; i++ {
		if s := p.slab.at(i); s.live && s.front == front && p.withdraw(t.now, s, i) {
			p.count(s.model, sched.Canceled)
			p.models[s.model].ended++
			p.slab.drop(i)
		}
	}
	if to == p.slab.used {
		return 0
	}
	return to
}

// withdraw takes a queued request out of its queue; false when it is in a batch already.
func (p *partition) withdraw(now sched.Time, s *slot, i uint32) bool {
	return s.live && p.s.Cancel(now, s.request(i))
}

// cancel withdraws a frontend's request and ends it; one in a batch is answered by its backend.
func (p *partition) cancel(t *turn, front uint32, id uint64) {
	i := p.slab.find(front, id)
	if i != noSlot && p.withdraw(t.now, p.slab.at(i), i) {
		p.end(t, i, sched.Canceled)
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
		s, k := p.slab.get(drops[i].ID)
		if s.model != id || drops[i].Reason != sched.UnknownModel {
			continue
		}
		why := sched.UnknownModel
		if err == nil {
			why = p.enqueue(t.now, k, s)
		}
		if why != sched.ReasonNone {
			p.end(t, k, why)
		}
	}
	p.collect(e, t)
	p.resetM = 0
	return err
}
