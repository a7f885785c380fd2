package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// worksElsewhere reports whether a working GPU in another sub-cluster serves the batch's model and all other models
// of the batch's GPU. Otherwise some model would have no other home and would have to wait until a hold ends.
func (p *partition) worksElsewhere(e *Engine, f *flight) bool {
	own := e.ranker(f.gpu.sub).models.Load()
	return slices.ContainsFunc(p.severalOf(f.model), func(sub uint32) bool {
		r := e.ranker(sub)
		return sub != f.gpu.sub && r.working.Load() > 0 && containsAll(*r.models.Load(), *own)
	})
}

// containsAll reports whether all contains every id of some. Both ascend.
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

// completeFlight ends a batch that backend b reports. It returns false if the batch was not in flight.
func (p *partition) completeFlight(e *Engine, t *turn, b *Backend, m *wire.Done) bool {
	f, place := p.flightOf(b, m)
	if f == nil {
		p.strays++
		return false
	}

	c := &p.models[f.model]
	failed, broken, back := p.noteFailures(t, f, m)
	c.served += uint64(len(f.requests) - failed)
	if a := p.answersOf(f.model); a != nil {
		a.countAnswers(f.variant, len(f.requests)-failed)
	}

	// A batch that the backend did not run, because by its own profile it could not end in time, counts as if it had
	// begun now.
	freeAt, exec := t.now.Add(boundReported(m.FreeIn)), boundReported(m.Exec)
	took, ended, unrun := exec, t.now, exec == 0 && broken < len(f.requests)
	if unrun {
		took = f.gpu.usualTime(f)
		ended = t.now.Add(took)
	}

	// A sick GPU's lateness says nothing about the others.
	if freed := sched.Time(f.gpu.freed.Swap(int64(freeAt))); !f.gpu.sick.Load() {
		p.overrunIn(f.gpu.sub).addBatch(t.now, ended, f.ends, freed, f.exec)
	}

	// Fetch times are kept per input: the scheduler multiplies d_data by the batch size.
	t.fetches = append(t.fetches, m.Fetch/int64(len(f.requests)))
	c.countRun(len(f.requests), int64(exec))
	t.completes = append(t.completes, completion{g: f.gpu, batch: f.id, freeAt: freeAt,
		failed: broken == len(f.requests), slow: sched.IsSlow(took, f.exec),
		elsewhere: broken == len(f.requests) && p.worksElsewhere(e, f), unrun: unrun})

	// If the GPU has changed its sub-cluster since, another ranker waits for the report too.
	if u := e.gpu(f.gpu.id); u != f.gpu && u != nil && u.b == b {
		t.awaited = append(t.awaited, completion{g: u, freeAt: freeAt})
	}

	// The GPU may already have its next batch, whose number must stay.
	f.gpu.busy.Add(int64(exec))
	f.gpu.batches.Add(1)
	f.gpu.batch.CompareAndSwap(uint64(f.id), 0)
	p.recent.add(Ran{GPU: uint32(f.gpu.id), Model: f.model, Size: uint32(len(f.requests)), Start: freeAt - sched.Time(exec), End: freeAt})

	// Requests that the backend returned are queued again before the batch's memory is freed.
	if back {
		for k := range f.requests {
			if f.requests[k].Flags&(sched.GaveBack|sched.Told) == sched.GaveBack {
				p.requeueUnanswered(e, t, f, k)
			}
		}
	}

	p.freeFlight(place)

	// The requeued requests may end, or need a GPU, at once.
	if back {
		p.collectOutputs(e, t)
	}
	return true
}

// noteFailures counts the requests of a flight that got no output, and marks those that others may serve or whose
// frontend must still be told. It returns how many failed, how many of these for a reason that may lie with the GPU
// or its backend, and whether any is to be queued again.
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

		// A failure that the backend told the frontend has ended the request. One that another try would not change
		// ends here.
		r, past := &f.requests[k], sched.AfterFailure(why, x.Untold)
		r.Flags |= past
		switch {
		case past == 0:
			p.countOutcome(f.model, why)
		case past&sched.Told != 0:
			p.models[f.model].sent--
			p.refuseRequest(t, r, why)
		default:
			back = true
		}
	}
	return min(failed, len(f.requests)), broken, back
}

// boundReported bounds a duration that a backend reports, so that a backend's mistake costs at most an hour.
func boundReported(ns int64) sched.Duration { return sched.Duration(max(0, min(ns, sched.SLOLimit))) }
