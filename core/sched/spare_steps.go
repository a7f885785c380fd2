package sched

import "fmt"

// SpareStep is the order to run one step on one GPU. Exactly one EndSpare must answer it.
type SpareStep struct {
	Work       WorkID
	SubCluster uint32
	GPU        GPUID
	Epoch      uint32 // the GPU's life
	Start      Time   // when the GPU is free
	End        Time   // Start + Step
}

// runningStep is a GPU's step.
type runningStep struct {
	work  WorkID
	step  Duration
	start Time
	end   Time // as planned
	late  bool // it has not ended as planned
}

// stepsOf returns the number of a work's running steps.
func (r *Ranker) stepsOf(id WorkID) (n int) {
	for g := range r.spare.steps {
		if r.gpus[g].spare && r.spare.steps[g].work == id {
			n++
		}
	}
	return n
}

// EndSpare answers a SpareStep: its GPU is free at freeAt, which moves the plan of later orders. A step that was not
// started, or has already ended, is an error and changes nothing.
func (r *Ranker) EndSpare(now Time, id GPUID, epoch uint32, freeAt Time) error {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil || g.epoch != epoch || !g.spare {
		if r.spare != nil {
			r.spare.stats.Stale++
		}
		return fmt.Errorf("sched: spare step on gpu %d: %w", id, ErrUnknown)
	}

	freeAt = max(0, freeAt)
	x := r.spare.steps[id]

	// An overrunning step has delayed the batch after it: the driver's Step is too short.
	if freeAt > x.end {
		r.spare.stats.Overrun++
	}
	r.forgetStep(id, g, freeAt.Sub(x.start))

	r.replanGPU(now, id, g, freeAt)
	return nil
}

// SpareSteps returns the steps that the latest Advance started, valid until the next.
func (r *Ranker) SpareSteps() []SpareStep {
	if r.spare == nil {
		return nil
	}
	return r.spare.out
}

// forgetStep records that a GPU's step has ended, or is lost with the GPU.
func (r *Ranker) forgetStep(id GPUID, g *gpu, took Duration) {
	r.spare.unwatch(id)
	g.spare = false
	r.spare.count--
	if w := r.spare.findWork(r.spare.steps[id].work); w != nil {
		w.running--
	}
	if g.unfinished > 0 {
		r.spare.followed--
	}
	r.spare.stats.Time += max(0, took)
}

// startSteps starts as many steps as requests leave room for, on the idle GPUs with the highest numbers, because load
// gathers on the others.
func (r *Ranker) startSteps(now Time) {
	s := r.spare
	s.out = s.out[:0]
	room, checked := 0, Duration(0) // how many steps of the checked length may start

	// When GPU time is scarce only short steps run: a request that finds a GPU taken waits for less time.
	longest := SpareStepMost
	if len(s.works) > 0 && r.load() >= tight {
		longest = spareStepTight
	}

	for id := r.idle.last(len(r.gpus)); id >= 0; id = r.idle.last(id) {
		g := &r.gpus[id]
		if g.spare || g.unfinished > 0 {
			continue // its step ends soon, but has not ended
		}

		for {
			w := s.nextWork(GPUID(id), longest)
			if w == nil {
				break
			}

			// Compute the room once for each length: it is a pass over all models and GPUs.
			if w.Step != checked {
				room, checked = r.spareRoom(now, w.Step), w.Step
			}
			if room > 0 {
				room--
				r.startStep(now, GPUID(id), g, w)
				break
			}
			longest = w.Step - 1 // a shorter step may still fit
		}
		if longest == 0 {
			return
		}
	}
}

// nextWork returns the work to run next on a GPU: among works with steps no longer than longest, the one with the
// least usage by its weight.
func (s *spare) nextWork(id GPUID, longest Duration) *offered {
	var best *offered
	owner := s.ownerOf(id)
	for i := range s.works {
		w := &s.works[i]
		mayRun := !w.suspended && w.Step <= longest && w.mayRunOn(id, owner) && (w.Most == 0 || w.running < w.Most)
		if mayRun && (best == nil || w.used < best.used) {
			best = w
		}
	}
	return best
}

// findWork returns the spare work with a number, or nil.
func (s *spare) findWork(id WorkID) *offered {
	for i := range s.works {
		if s.works[i].ID == id {
			return &s.works[i]
		}
	}
	return nil
}

func (r *Ranker) startStep(now Time, id GPUID, g *gpu, w *offered) {
	s := r.spare
	for int(id) >= len(s.steps) {
		s.steps = append(s.steps, runningStep{})
	}

	start := max(r.earliestStart(now), g.freeAt)
	end := start.Add(w.Step)
	s.steps[id] = runningStep{work: w.ID, step: w.Step, start: start, end: end}

	// Count the step now: if its end counted it, the work would get every other idle GPU meanwhile.
	w.used += float64(w.Step) / w.Weight
	w.running++
	s.count++
	s.stats.Steps++
	s.out = append(s.out, SpareStep{Work: w.ID, SubCluster: r.number, GPU: id, Epoch: g.epoch, Start: start, End: end})

	// Plan the step as busy time, so that a batch may be granted after it.
	g.spare, g.freeAt = true, end
	r.idle.clear(uint32(id))
	g.state = busy
	r.busy.set(r.gpus, id)
}
