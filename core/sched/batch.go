package sched

import vocabulary "downbeat.dev/core/model"

// startTime returns when a batch of b, sent now, starts on a GPU that is free at freeAt.
func (p *Partition) startTime(now Time, b int, freeAt Time) Time {
	return max(now.Add(p.o.Ctrl+Duration(b)*p.o.Data), freeAt)
}

// formPlain forms the next batch of a plain model for a granted GPU; it returns false if the GPU stays unused.
//
// The granted GPU is the first to become free, so requests that it cannot serve in time even alone are dropped. Then
// pickBatch chooses the batch, and the requests before it are dropped. An early grant is declined if the batch is still
// expected to grow by more than the grant allows.
func (p *Partition) formPlain(now Time, m *model, g Grant) bool {
	p.dropExpired(p.startTime(now, 1, g.FreeAt).Add(m.exec[1]), m)
	if m.q.len() == 0 || g.Early && m.growth(now) > g.Growth {
		return false
	}

	// Sample the budget before the batch leaves, because it comes from the last queued request.
	m.sampleBudget()
	skip, b := p.pickBatch(now, m, &m.execution, 0, g.FreeAt, g.Load)
	p.dropHeads(m, skip)
	p.emitBatch(now, m, &m.execution, g, 0, b, skip)
	return true
}

// dropHeads drops the first n requests, which pickBatch left out.
func (p *Partition) dropHeads(m *model, n int) {
	for i := range n {
		p.drop(m.q.at(i), vocabulary.DeadlineCannotBeMet)
		p.out.Drops[len(p.out.Drops)-1].Rule = Windowed
	}
	m.q.pop(n, &m.priorities)
}

// emitBatch takes b requests, from place first on, out of the queue and outputs their batch, executed as x on the
// granted GPU. skipped is the number of requests that were dropped for it.
func (p *Partition) emitBatch(now Time, m *model, x *execution, g Grant, first, b, skipped int) {
	head := m.q.at(first).Deadline
	if g.Trial {
		b = min(b, 1)
	}

	m.addDebt(b, skipped)
	m.adjustMargin(b, 0)
	p.batch++
	p.stats.Batches++
	p.stats.Batched += uint64(b)

	// Fill the batch in place: a literal would be built on the stack first, and the copy would wait for its stores.
	start := p.startTime(now, b, g.FreeAt)
	p.out.Batches = append(p.out.Batches, Batch{})
	o := &p.out.Batches[len(p.out.Batches)-1]
	o.ID, o.Model, o.Variant, o.GPU, o.Epoch = p.batch, m.id, x.variant, g.GPU, g.Epoch
	o.ExecAt, o.Latest, o.Finish = start, head-Time(x.exec[b]), start.Add(x.exec[b])
	if first == 0 {
		o.Requests, o.piece = p.takeBatch(m, b)
		return
	}

	// Earlier requests stay queued, so the queue keeps its memory and the batch gets a piece of its own.
	o.piece = p.out.memory.take(b)
	o.Requests = m.q.takeFrom(first, b, o.piece[:0], &m.priorities)
}

// takeBatch removes the next b requests from a model's queue and returns them with their memory.
//
// While all queues fit in a core's cache, the requests are copied: a queue that moved to another piece would write to
// memory outside the cache. Otherwise the batch takes over the queue's memory.
func (p *Partition) takeBatch(m *model, b int) (batch, piece []Request) {
	q, mem := &m.q, &p.out.memory

	// Priorities matter only if they differ and some requests stay.
	if b < q.len() && !m.priorities.uniform(q.len()) {
		piece = mem.take(b)
		return q.takeByPriority(b, piece[:0], &m.priorities), piece
	}
	if !p.Far() || q.len() > 2*b {
		piece = mem.take(b)
		batch = piece[:copy(piece[:b], q.buf[q.head:])]
		q.pop(b, &m.priorities)
		return batch, piece
	}

	// The batch keeps the queue's memory. The queue moves to another piece, a smaller one if a long queue had made it grow.
	batch, piece = q.buf[q.head:][:b:b], q.buf
	next := len(piece)
	if next > 4*max(b, pieceMin) {
		next = 2 * max(b, pieceMin)
	}
	q.pop(b, &m.priorities)
	q.move(mem.take(next))
	return batch, piece
}
