package engine

import (
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// flight is a batch in flight.
type flight struct {
	id      sched.BatchID
	gen     uint32
	model   uint32
	variant uint32 // its place in the counts of its family's answers; 0 for a plain model
	gpu     *gpu   // nil: the place is unused
	sent    sched.Time
	ends    sched.Time     // as planned
	exec    sched.Duration // as planned
	until   sched.Time     // the watchdog's limit
	// The requests that were sent, to queue them again if the backend is lost, and the memory that holds them. The
	// port reads both after the lock is released, so they stay unchanged until the batch is done.
	requests, piece []sched.Request
	_               [16]byte // two cache lines
}

// A batch's number on the wire: partition, generation, place.
func (p *partition) wireID(place uint32) uint64 {
	return uint64(p.number)<<56 | uint64(p.batches[place].gen&0xffffff)<<32 | uint64(place)
}

// flightOf returns the flight that a Done of backend b refers to; nil if there is none.
func (p *partition) flightOf(b *Backend, m *wire.Done) (*flight, uint32) {
	place := uint32(m.Batch)

	// The number comes from the backend: it must not index beyond the list.
	if int(place) >= len(p.batches) {
		return nil, 0
	}
	f := &p.batches[place]

	// Places are reused; the generation in the number tells a late report from one of the present batch.
	if f.gpu == nil || f.gpu.b != b || f.gpu.index != m.GPU || p.wireID(place) != m.Batch {
		return nil, 0
	}
	return f, place
}

// startFlight starts a batch's flight, unless its GPU has left meanwhile.
func (p *partition) startFlight(e *Engine, t *turn, b *sched.Batch) bool {
	// Since the grant, the GPU may have left, or its id may belong to another GPU.
	g := e.gpu(b.GPU)
	var model, answer uint32
	ok := g != nil && g.epoch == b.Epoch && !g.b.dead.Load()
	if ok {
		model, answer, ok = p.answerOf(g, b)
	}
	if !ok {
		return false
	}

	place := p.unusedPlace()
	f := &p.batches[place]
	f.id, f.model, f.gpu, f.sent = b.ID, uint32(b.Model), g, t.now
	f.ends, f.exec = b.Finish, b.Finish.Sub(b.ExecAt)
	if f.variant = 0; answer != 0 {
		f.variant = p.families[uint32(b.Model)].variants[b.Variant].place
	}

	// The watchdog's limit grows with the execution time: a long batch may be late by more.
	f.until = b.Finish.Add(sched.Duration(limits.Engine(time.Duration(b.Finish.Sub(b.ExecAt)))))
	f.requests, f.piece = b.Requests, b.Keep()
	p.live -= len(f.requests)

	// The order leaves after the lock is released (I2); until then the turn carries it.
	t.orders = append(t.orders, order{b: g.b})
	o := &t.orders[len(t.orders)-1].m
	o.Batch, o.GPU, o.Model, o.Answer, o.Requests, o.sent = p.wireID(place), g.index, model, answer, b.Requests, t.now
	o.Start, o.Latest = int64(b.ExecAt.Sub(t.now)), int64(b.Latest.Sub(t.now))

	// Each turn counts once, however many batches it takes from here: reclaim compares begun with told.
	if bit := uint64(1) << p.number; t.ordering&bit == 0 {
		t.ordering |= bit
		p.begun++
	}

	p.models[b.Model].countSent(len(f.requests))
	g.batch.Store(uint64(b.ID))
	return true
}

// unusedPlace returns an unused place in batches.
func (p *partition) unusedPlace() uint32 {
	// The list grows to the most batches that were ever in flight together and does not shrink.
	if len(p.idle) == 0 {
		p.batches = append(p.batches, flight{})
		p.idle = append(p.idle, uint32(len(p.batches)-1))
	}
	i := p.idle[len(p.idle)-1]
	p.idle = p.idle[:len(p.idle)-1]
	p.batches[i].gen += p.nextGen()
	return i
}

// nextGen returns the increment of a place's generation. In real time it must be unpredictable: a backend that
// guesses the number and reports a batch before it gets it would free memory that its port still reads.
func (p *partition) nextGen() uint32 {
	if p.gens == nil {
		return 1
	}
	return 1 + uint32(p.gens.Uint64()%(1<<24-1)) // modulo 2²⁴ never the previous one
}

// freeFlight frees the place of a flight.
func (p *partition) freeFlight(place uint32) {
	f := &p.batches[place]
	p.s.Release(f.piece)
	f.gpu, f.requests, f.piece = nil, nil, nil
	p.idle = append(p.idle, place)
}

// loseBackend takes back every batch in flight on backend b.
func (p *partition) loseBackend(e *Engine, t *turn, b *Backend) {
	for k := range p.batches {
		f := &p.batches[k]
		if f.gpu == nil || f.gpu.b != b {
			continue
		}

		p.requeueFlight(e, t, f)

		// The port may still read the requests, so reclaim frees the memory later.
		p.lost = append(p.lost, f.piece)
		f.piece = nil
		p.freeFlight(uint32(k))
	}
}

// reclaimLost frees the memory of lost batches once every turn that took orders has delivered them, so that no port reads
// it any more.
func (p *partition) reclaimLost() {
	if len(p.lost) > 0 && p.told.Load() == p.begun {
		for _, piece := range p.lost {
			p.s.Release(piece)
		}
		p.lost = nil
	}
}

// findSilent finds batches whose backend has been silent too long. Time in which this process was stopped does not count.
func (p *partition) findSilent(t *turn) {
	absent := limits.Absence(sched.Duration(houseEvery), t.now.Sub(p.watched))
	p.watched = t.now // only housekeeping uses it

	p.mu.holdForParts(func(from, n int) bool {
		p.reclaimLost()
		return p.watchSome(t, absent, from, n)
	})
}

// watchSome watches the n batches from place from on, and returns whether there are more. mu is held.
func (p *partition) watchSome(t *turn, absent sched.Duration, from, n int) (more bool) {
	end := min(from+n, len(p.batches))
	for k := from; k < end; k++ {
		f := &p.batches[k]
		if f.gpu == nil {
			continue
		}

		// A batch sent since the last look was in flight for only part of the absence. Others may be sent during this one.
		if absent > 0 {
			f.until = f.until.Add(min(absent, max(0, t.now.Sub(f.sent))))
		}

		if f.until < t.now && f.gpu.b.hung.CompareAndSwap(false, true) {
			t.cuts = append(t.cuts, f.gpu.b)
		}
	}
	return end < len(p.batches)
}
