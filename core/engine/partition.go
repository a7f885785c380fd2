package engine

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/limits"
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

// flight is a batch under way.
type flight struct {
	id    sched.BatchID
	gen   uint32
	model uint32
	gpu   *gpu // nil: the place is unused
	sent  sched.Time
	ends  sched.Time     // as planned
	exec  sched.Duration // as planned
	until sched.Time     // the watchdog
	// What was sent, to be queued again when the backend is lost, and the memory that it lies in. The port
	// reads both after the lock is released, so they are not written again before the batch is done.
	requests, piece []sched.Request
}

// A batch's number on the wire: partition, generation, place.
func (p *partition) wireID(place uint32) uint64 {
	return uint64(p.number)<<56 | uint64(p.batches[place].gen&0xffffff)<<32 | uint64(place)
}

// flightOf returns the flight that a Done of backend b speaks of, nil when there is none.
func (p *partition) flightOf(b *Backend, m *wire.Done) (*flight, uint32) {
	place := uint32(m.Batch)

	// The number is the backend's word: a place that never was must not be read.
	if int(place) >= len(p.batches) {
		return nil, 0
	}
	f := &p.batches[place]

	// A place is used again; the generation in the number tells a late report from one of the batch that is there now.
	if f.gpu == nil || f.gpu.b != b || f.gpu.index != m.GPU || p.wireID(place) != m.Batch {
		return nil, 0
	}
	return f, place
}

// accept takes one request in or says why not.
func (p *partition) accept(now sched.Time, s *seats, m *wire.Submit) model.Reason {
	place, mark := s.seat(m.ID)
	if *place == mark && p.s.Holds(sched.ModelID(m.Model), sched.RequestID(m.ID), s.number) {
		p.twins++
		return twin
	}

	// Memory is bounded by the requests queued: what is beyond ends at once (I5).
	if p.live == p.liveMax {
		p.count(m.Model, model.QueueFull)
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
		p.count(m.Model, why)
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

func (p *partition) count(model uint32, why model.Reason) {
	if int(model) < len(p.models) {
		p.models[model].outcomes[why]++
	} else {
		p.unknown++
	}
}

// end ends a request that was queued, with an outcome.
func (p *partition) end(t *turn, r *sched.Request, why model.Reason) {
	p.live--
	p.refuse(t, r, sched.ReasonTold(r.Flags, why))
}

// refuse ends a request that is not counted as queued.
func (p *partition) refuse(t *turn, r *sched.Request, why model.Reason) {
	p.count(uint32(r.Model), why)
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

// send puts a batch under way, unless its GPU has gone meanwhile.
func (p *partition) send(e *Engine, t *turn, b *sched.Batch) bool {
	// The GPU may have gone, or have been given back under another number, since it was granted.
	g := e.gpu(b.GPU)
	var model, answer uint32
	ok := g != nil && g.epoch == b.Epoch && !g.b.dead.Load()
	if ok {
		model, answer, ok = p.answerOf(g, b)
	}
	if !ok {
		return false
	}

	place := p.place()
	f := &p.batches[place]
	f.id, f.model, f.gpu, f.sent = b.ID, uint32(b.Model), g, t.now
	f.ends, f.exec = b.Finish, b.Finish.Sub(b.ExecAt)
	f.until = b.Finish.Add(sched.Duration(limits.Engine(time.Duration(b.Finish.Sub(b.ExecAt)))))
	f.requests, f.piece = b.Requests, b.Keep()
	p.live -= len(f.requests)

	// The order goes out after the lock is released (I2); until then the turn carries it.
	t.orders = append(t.orders, order{b: g.b})
	o := &t.orders[len(t.orders)-1].m
	o.Batch, o.GPU, o.Model, o.Answer, o.Requests, o.sent = p.wireID(place), g.index, model, answer, b.Requests, t.now
	o.Start, o.Latest = int64(b.ExecAt.Sub(t.now)), int64(b.Latest.Sub(t.now))

	// Each turn counts once, however many batches it takes from here: reclaim compares begun with told.
	if bit := uint64(1) << p.number; t.ordering&bit == 0 {
		t.ordering |= bit
		p.begun++
	}

	p.models[b.Model].batch(len(f.requests))
	if answer != 0 {
		p.families[uint32(b.Model)].count(b.Variant, len(f.requests))
	}
	g.batch.Store(uint64(b.ID))
	return true
}

// place returns an unused place in batches.
func (p *partition) place() uint32 {
	// The list grows to the most batches that were ever under way together, and stays so long.
	if len(p.idle) == 0 {
		p.batches = append(p.batches, flight{})
		p.idle = append(p.idle, uint32(len(p.batches)-1))
	}
	i := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	p.batches[i].gen += p.nextGen()
	return i
}

// nextGen is by how much a place's generation grows. In real time it cannot be guessed: a backend that reports a
// batch before it gets it would give memory back that its port still reads.
func (p *partition) nextGen() uint32 {
	if p.gens == nil {
		return 1
	}
	return 1 + uint32(p.gens.Uint64()%(1<<24-1)) // modulo 2²⁴ never the one before
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
		p.end(t, r, model.Canceled)
		return
	}

	// A request keeps its end in microseconds; the margin is taken anew, since batches may run later by now.
	due := t.now - t.now%microsecond + sched.Time(left(r.Due, t.now))*microsecond
	r.Deadline = due - p.overrunOf(uint32(r.Model)).margin(due.Sub(t.now))
	if why := p.s.Enqueue(t.now, *r); why != model.ReasonNone {
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

	// The groups come first: they depend on flags that are cleared next.
	r.Avoid = p.groupsToAvoid(e, t.now, f, &r)
	r.Flags = sched.PastOf(r.Flags)

	// A session's end clears its seats, so that what its batches held has nobody to answer.
	s := p.seats(r.Origin)
	if s == nil {
		p.refuse(t, &r, model.Canceled) // its session is gone
		return
	}
	place, mark := s.seat(uint64(r.ID))
	switch {
	case *place != mark: // a later request sat down there: its answer stands
	case p.live == p.liveMax:
		p.refuse(t, &r, sched.ReasonLost(r.Flags))
	default:
		p.live++
		p.again(e, t, &r)
	}
}

// giveBack takes a request that its GPU did not answer and never will: others get it, where core/sched gives it another try.
func (p *partition) giveBack(e *Engine, t *turn, f *flight, k int) {
	r := &f.requests[k]

	// The note comes before the request is queued: reload already reads it.
	if r.Flags&sched.Unread != 0 {
		p.noteUnread(t.now, r.Origin, f.gpu.b.group)
	}
	if sched.MayTryAgain(r.Flags) {
		p.reload(e, t, f, k)
		return
	}
	// No backend answers it, nor will another try.
	p.models[f.model].sent--
	p.refuse(t, r, sched.ReasonLost(r.Flags))
}

// worksElsewhere says whether a GPU that works serves a batch's model in another sub-cluster than the batch's, and all
// that the batch's GPU serves besides: a model that has no other home must not wait until a hold ends.
func (p *partition) worksElsewhere(e *Engine, f *flight) bool {
	own := e.ranker(f.gpu.sub).models.Load()
	return slices.ContainsFunc(p.several[f.model], func(sub uint32) bool {
		r := e.ranker(sub)
		return sub != f.gpu.sub && r.working.Load() > 0 && containsAll(*r.models.Load(), *own)
	})
}

// containsAll says whether every one of some ids is among others. Both ascend.
func containsAll(all, some []uint32) bool {
	for _, id := range some {
		// Both lists ascend, so that one pass over each is enough.
		for len(all) > 0 && all[0] < id {
			all = all[1:]
		}
		if len(all) == 0 || all[0] != id {
			return false
		}
	}
	return true
}

// done ends a batch that backend b reports. It reports whether the batch was under way.
func (p *partition) done(e *Engine, t *turn, b *Backend, m *wire.Done) bool {
	f, place := p.flightOf(b, m)
	if f == nil {
		p.strays++
		return false
	}

	c := &p.models[f.model]
	failed, broken, back := p.noteFailures(t, f, m)
	c.served += uint64(len(f.requests) - failed)

	// A GPU that is sick says nothing of the others' jitter.
	freeAt, exec := t.now.Add(sane(m.FreeIn)), sane(m.Exec)
	if freed := sched.Time(f.gpu.freed.Swap(int64(freeAt))); !f.gpu.sick.Load() {
		p.overrunIn(f.gpu.sub).addBatch(t.now, f.ends, freed, f.exec)
	}

	// Fetch times are kept per input: the scheduler multiplies d_data by the batch size.
	t.fetches = append(t.fetches, m.Fetch/int64(len(f.requests)))
	c.countRun(len(f.requests), int64(exec))
	t.completes = append(t.completes, completion{g: f.gpu, batch: f.id, freeAt: freeAt,
		failed: broken == len(f.requests), slow: sched.IsSlow(exec, f.exec),
		elsewhere: broken == len(f.requests) && p.worksElsewhere(e, f),
		unrun:     exec == 0 && broken < len(f.requests)})

	f.gpu.busy.Add(int64(exec))
	f.gpu.batches.Add(1)
	f.gpu.batch.CompareAndSwap(uint64(f.id), 0)
	p.recent.add(Ran{GPU: uint32(f.gpu.id), Model: f.model, Size: uint32(len(f.requests)), Start: freeAt - sched.Time(exec), End: freeAt})

	// What the backend gave back is queued again before its memory goes.
	if back {
		for k := range f.requests {
			if f.requests[k].Flags&(sched.GaveBack|sched.Told) == sched.GaveBack {
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

// noteFailures counts the requests of a flight that got no output, and marks those that others may serve or that
// the frontend has yet to be told of. It returns how many got none, how many of these for a reason that may be the
// GPU's or its backend's, and whether some are for others to serve.
func (p *partition) noteFailures(t *turn, f *flight, m *wire.Done) (failed, broken int, back bool) {
	for _, x := range m.Failures {
		k, why := int(x.Index), x.Reason
		if k >= len(f.requests) || why == model.ReasonNone || why >= model.ReasonCount || f.requests[k].Flags&sched.GaveBack != 0 {
			continue
		}

		failed++
		if sched.BlamesGPU(why, x.Untold) {
			broken++
		}

		// What the backend told its frontend has ended; what others would do no better with ends here.
		r, past := &f.requests[k], sched.AfterFailure(why, x.Untold)
		r.Flags |= past
		switch {
		case past == 0:
			p.count(f.model, why)
		case past&sched.Told != 0:
			p.models[f.model].sent--
			p.refuse(t, r, why)
		default:
			back = true
		}
	}
	return min(failed, len(f.requests)), broken, back
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

		// The port may still read the requests: the memory waits for reclaim.
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

// watch finds batches whose backend is silent for too long. Time in which nobody here listened does not count.
func (p *partition) watch(t *turn) {
	p.reclaim()
	absent := limits.Absence(sched.Duration(houseEvery), t.now.Sub(p.watched))
	p.watched = t.now
	for k := range p.batches {
		f := &p.batches[k]

		// A batch sent since the last look was not under way for all of the absence.
		f.until = f.until.Add(min(absent, t.now.Sub(f.sent)))
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

	// The lock is given back after some steps: a session of a hundred thousand requests must not stop the others.
	looked := 0
	for m := from; m < len(p.models) && p.live > 0; m++ {
		if looked > purgeStep {
			return m
		}
		p.s.CancelAll(t.now, sched.ModelID(m), front)
		looked += 16 + min(p.s.Queued(sched.ModelID(m)), purgeStep/16)
	}

	// The seats go last: a purge in several steps must find them each time.
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

	// The mark spares most of the searches; it may be another id's, so that the queue has the last word.
	if place, mark := s.seat(m.ID); *place == mark && p.s.Cancel(t.now, r.Model, r.ID, front) {
		p.end(t, &r, model.Canceled)
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
