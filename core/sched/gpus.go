package sched

import "fmt"

// The states of a GPU.
const (
	absent  uint8 = iota
	idle          // in the idle set: free soon
	busy          // on the set of busy GPUs until freeAt
	granted       // a partition decides how to use it
	stalled       // completions are missing; it gets no batch until one arrives
)

// gpu is one cache line: cores take turns with a Ranker.
type gpu struct {
	freeAt     Time
	at         Time  // freeAt as in the set of busy GPUs
	next, prev int32 // in the busy set's slot: GPU+1, 0: none
	slot       int32 // +1; 0: in none
	epoch      uint32
	state      uint8
	unfinished uint8 // orders without a completion
	held       bool  // it gets no batch before Ranker.holds
	spare      bool  // it runs a step of spare work
	group      Groups
	first      order // the oldest of these; Ranker.later has the others
}

// AddGPU adds a GPU, free at now. The epoch, which Grant, Batch and Free carry, distinguishes this life of the id
// from others, also in other sub-clusters.
func (r *Ranker) AddGPU(now Time, id GPUID, epoch uint32) error {
	now = r.clock(now)
	if id >= IDLimit {
		return fmt.Errorf("sched: gpu %d: want an id below %d", id, IDLimit)
	}
	for int(id) >= len(r.gpus) {
		r.gpus, r.later, r.holds = append(r.gpus, gpu{}), append(r.later, [unfinishedMax - 1]order{}), append(r.holds, 0)
	}
	r.idle.grow(len(r.gpus))

	// The driver reuses ids: a GPU must have been removed before its id is added again.
	g := &r.gpus[id]
	if g.state != absent {
		return fmt.Errorf("sched: gpu %d: %w", id, ErrKnown)
	}
	g.freeAt, g.epoch, g.state, g.unfinished, g.held, g.spare, g.group = now, epoch, idle, 0, false, false, 0 // the set of busy GPUs may still have it
	r.SetSpareOwner(id, 0)
	r.idle.set(uint32(id))
	r.moved = true
	r.count++
	return nil
}

// RemoveGPU removes a GPU. The driver resubmits or fails its running batch.
func (r *Ranker) RemoveGPU(now Time, id GPUID) {
	r.clock(now)
	if int(id) >= len(r.gpus) || r.gpus[id].state == absent {
		return
	}

	// The set of busy GPUs keeps its link and drops GPUs that are not busy when they come first.
	r.idle.clear(uint32(id))
	r.moved = true
	r.gpus[id].state = absent
	r.releaseHold(&r.gpus[id])
	if r.gpus[id].spare {
		r.forgetStep(id, &r.gpus[id], 0)
	}
	r.count--
}

// Hold withholds batches from a GPU until a time; batches already sent stay. Meanwhile the others share the load. A
// later call replaces an earlier one; a time that is not after now ends the hold.
func (r *Ranker) Hold(now Time, id GPUID, until Time) {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil {
		return
	}
	if !g.held {
		g.held = true
		r.held++
	}

	// placeGPU applies the hold, now or when the GPU's grant is answered.
	r.holds[id] = until

	// The hold had moved the time when the GPU is free. Without a batch it is free at once; with a batch, its
	// Complete says when.
	if until <= now && g.unfinished == 0 && !g.spare {
		g.freeAt = min(g.freeAt, now)
	}

	// A partition answers for a granted GPU: Free places it, with the hold.
	if g.state != granted {
		r.placeGPU(now, id, g)
	}
}

// releaseHold ends a hold.
func (r *Ranker) releaseHold(g *gpu) {
	if g.held {
		g.held = false
		r.held--
	}
}

// collectFree moves the GPUs that are free soon to the idle set.
func (r *Ranker) collectFree(now Time) {
	for {
		id, ok := r.busy.advance(r.gpus, r.earliestStart(now))
		if !ok {
			return
		}
		if r.gpus[id].spare {
			r.endExtraTime(id, &r.gpus[id])
		}
		r.placeGPU(now, id, &r.gpus[id])
	}
}

// stallGPU withholds work from a GPU until a completion arrives.
func (r *Ranker) stallGPU(id GPUID) {
	r.gpus[id].state = stalled
	r.moved = true
	r.stats.Stalled++
}

// pickGPU takes the idle GPU with the lowest number, so that load gathers on few; with none idle, the first that is
// free within lead.
func (r *Ranker) pickGPU(now Time, lead Duration) (GPUID, bool) {
	// With an idle GPU the set of busy GPUs is not needed.
	if r.idle.n > 0 {
		return GPUID(r.idle.first()), true
	}
	for r.busy.least <= now.Add(lead) {
		// Of the busy GPUs, the first to become free takes the batch after its own, if that is in time.
		id, at := r.busy.top(r.gpus)
		if at > now.Add(lead) {
			break
		}

		// A GPU with too many unreported batches may hang: do not give it another.
		if r.gpus[id].unfinished < unfinishedMax {
			return id, true
		}
		r.stallGPU(id)
	}
	return 0, false
}

// placeGPU moves a GPU to the set of its state after freeAt or its orders changed.
func (r *Ranker) placeGPU(now Time, id GPUID, g *gpu) {
	r.idle.clear(uint32(id))
	r.moved = true
	if g.spare {
		r.spare.unwatch(id)
	}

	// A hold moves the time when the GPU is free; otherwise the GPU is treated as busy.
	if g.held {
		g.freeAt = max(g.freeAt, r.holds[id])
		if now >= r.holds[id] {
			r.releaseHold(g)
		}
	}

	soon := g.freeAt <= r.earliestStart(now)
	switch {
	case soon && g.unfinished >= unfinishedMax:
		r.stallGPU(id)
	case soon:
		g.state = idle
		r.idle.set(uint32(id))
		if g.spare {
			r.spare.watch = append(r.spare.watch, id)
		}
	default:
		g.state = busy
		r.busy.set(r.gpus, id)
	}
}

func (r *Ranker) gpu(id GPUID) *gpu {
	if int(id) >= len(r.gpus) || r.gpus[id].state == absent {
		return nil
	}
	return &r.gpus[id]
}
