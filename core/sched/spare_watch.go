package sched

// watchSteps handles steps whose end should have been reported by now. Their GPUs count as busy for one more step; endExtraTime
// then gives the step up.
func (r *Ranker) watchSteps(now Time) {
	s := r.spare
	for k := 0; k < len(s.watch); {
		id := s.watch[k]
		x, g := &s.steps[id], &r.gpus[id]
		if x.end.Add(r.lead(1)) > now {
			k++
			continue
		}
		s.watch[k] = s.watch[len(s.watch)-1]
		s.watch = s.watch[:len(s.watch)-1]

		// The set of busy GPUs triggers endExtraTime when the extra time is over.
		x.late = true
		g.freeAt = r.earliestStart(now).Add(x.step)
		r.idle.clear(uint32(id))
		g.state = busy
		r.busy.set(r.gpus, id)
	}
}

// watchAt returns when the first report of a watched step is due.
func (r *Ranker) watchAt() Time {
	at := Never
	for _, id := range r.spare.watch {
		at = min(at, r.spare.steps[id].end.Add(r.lead(1)))
	}
	return at
}

// unwatch stops waiting for the report of a GPU's step.
func (s *spare) unwatch(id GPUID) {
	for k := range s.watch {
		if s.watch[k] == id {
			s.watch[k] = s.watch[len(s.watch)-1]
			s.watch = s.watch[:len(s.watch)-1]
			return
		}
	}
}

// endExtraTime ends the extra time of a late step: the report of its end counts as lost. This does not count against the
// GPU.
func (r *Ranker) endExtraTime(id GPUID, g *gpu) {
	if g.unfinished == 0 && r.spare.steps[id].late {
		r.loseStep(id, g)
	}
}

// loseStep stops waiting for a step's end and suspends its work: the step hangs, or its driver does not report.
func (r *Ranker) loseStep(id GPUID, g *gpu) {
	r.forgetStep(id, g, 0)
	r.spare.stats.Lost++
	if w := r.spare.findWork(r.spare.steps[id].work); w != nil {
		w.suspended = true
	}
}

// Suspended reports whether spare work gets no steps until it is offered anew, because the end of a step was never
// reported.
func (r *Ranker) Suspended(id WorkID) bool {
	if r.spare == nil {
		return false
	}
	w := r.spare.findWork(id)
	return w != nil && w.suspended
}
