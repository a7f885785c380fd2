package engine

import (
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

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

	// A long batch may be late by more: the watchdog's limit grows with its execution.
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
		p.families[uint32(b.Model)].countAnswers(b.Variant, len(f.requests))
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

// loseBackend takes back every batch of backend b that is under way.
func (p *partition) loseBackend(e *Engine, t *turn, b *Backend) {
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
