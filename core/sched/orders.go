package sched

import "fmt"

// unfinishedMax is how many batches without a completion a GPU may hold: the running one, the next, and one whose
// completion is under way. A GPU with that many becomes stalled when it would get another, so a backend that hangs
// receives few batches.
const unfinishedMax = 3

type order struct {
	id    BatchID
	start Time
	exec  Duration
}

// Free records the answer to a Grant. It does not keep the pointer.
func (r *Ranker) Free(now Time, f *Free) {
	now = r.clock(now)
	g := r.gpu(f.GPU)

	// The answer may come late: the GPU may have been removed meanwhile, or be in another life.
	if g == nil || g.epoch != f.Epoch || g.state != granted {
		r.stats.Stale++
		return
	}

	if f.Batch == 0 {
		r.stats.Unused++
		r.placeGPU(now, f.GPU, g)
		return
	}

	exec := f.FreeAt.Sub(f.Start)
	g.unfinished++
	*r.order(f.GPU, g.unfinished-1) = order{f.Batch, f.Start, exec}

	// With a batch behind its step, the GPU again counts as busy for requests: see unused.
	if g.spare && g.unfinished == 1 {
		r.spare.followed++
	}
	g.freeAt = max(g.freeAt, f.Start).Add(exec) // a completion may have moved it since the grant
	r.spent += exec
	r.placeGPU(now, f.GPU, g)
}

// Complete reports that a batch has finished, and with it those sent to the GPU before. The GPU is free at freeAt,
// which moves the plan of later orders. A batch that was never sent to the GPU, or has already completed, is an error
// and changes nothing.
func (r *Ranker) Complete(now Time, b BatchID, id GPUID, freeAt Time) error {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil {
		r.stats.Stale++
		return fmt.Errorf("sched: gpu %d: %w", id, ErrUnknown)
	}

	// Reports may overtake one another, so the batch need not be the oldest.
	k := uint8(0)
	for k < g.unfinished && r.order(id, k).id != b {
		k++
	}
	if k == g.unfinished {
		r.stats.Stale++
		return fmt.Errorf("sched: batch %d on gpu %d: %w", b, id, ErrUnknown)
	}

	freeAt = max(0, freeAt)

	// The GPU was busy for less time than planned if it is free before the planned end.
	o := *r.order(id, k)
	if early := o.start.Add(o.exec).Sub(freeAt); early < o.exec {
		r.spent -= early
	} else {
		r.spent -= o.exec
	}

	// Batches before this one have also ended: their reports are late or lost.
	if g.spare {
		r.loseStep(id, g) // it ran before the batch, so it ended without a report
	}

	g.unfinished -= k + 1
	for i := range g.unfinished {
		*r.order(id, i) = *r.order(id, i+k+1)
	}
	r.replanGPU(now, id, g, freeAt)
	return nil
}

// replanGPU moves the plan of a GPU that is free for its next order at freeAt: each order starts when those before it
// have actually ended.
func (r *Ranker) replanGPU(now Time, id GPUID, g *gpu, freeAt Time) {
	for i := range g.unfinished {
		o := r.order(id, i)
		freeAt = max(freeAt, o.start).Add(o.exec)
	}
	g.freeAt = freeAt

	// A granted GPU waits for the partition's answer, and Free places it.
	if g.state != granted {
		r.placeGPU(now, id, g)
	}
}

// order returns the k-th oldest of a GPU's orders.
func (r *Ranker) order(id GPUID, k uint8) *order {
	if k == 0 {
		return &r.gpus[id].first
	}
	return &r.later[id][k-1]
}
