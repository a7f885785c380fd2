package sched

// reset empties the outputs that Actions returned. Most calls leave none, and then reset is a single comparison.
func (s *Scheduler) reset() {
	if s.drained {
		s.forgetActions()
	}
}

// forgetActions keeps the candidates of joined requests: their rankers get them with the next Advance.
func (s *Scheduler) forgetActions() {
	s.part.out.resetActions()
	s.steps = s.steps[:0]
	s.drained = false
}

func (s *Scheduler) ranker(id GPUID) *Ranker {
	if int(id) >= len(s.where) || s.where[id] == 0 {
		return nil
	}
	return s.rankers[s.where[id]-1]
}

// rankerOf returns a sub-cluster's ranker; nil: it never had a GPU.
func (s *Scheduler) rankerOf(subCluster uint32) *Ranker {
	if int(subCluster) >= len(s.rankers) {
		return nil
	}
	return s.rankers[subCluster]
}

// pump passes messages until none is left. It ends, because each grant ends in a batch, in fewer queued requests, or
// in the return of a GPU by a model without requests.
func (s *Scheduler) pump(now Time) {
	o := &s.part.out
	for len(o.Candidates)+len(o.Frees)+len(o.Forecasts) > 0 || s.part.places != nil && s.placeQueues(now) {
		s.told = s.told[:0]

		// Return unused GPUs before the candidates that may want them.
		for i := range o.Frees {
			if r := s.rankerOf(o.Frees[i].SubCluster); r != nil {
				r.Free(now, &o.Frees[i])
				s.tell(r)
			}
		}

		for i := range o.Candidates {
			if r := s.rankerOf(o.Candidates[i].SubCluster); r != nil {
				r.Candidate(now, &o.Candidates[i])
				s.tell(r)
			}
		}
		for _, f := range o.Forecasts {
			if r := s.rankerOf(f.SubCluster); r != nil {
				r.Forecast(now, f)
				s.tell(r)
			}
		}
		o.Frees, o.Candidates, o.Forecasts = o.Frees[:0], o.Candidates[:0], o.Forecasts[:0]

		// Each ranker matches once for all messages that it got.
		for _, r := range s.told {
			s.rank(now, r)
		}
	}
}

// placeQueues lets services with several homes choose among them by the rankers' current state. It returns whether
// there are messages to rankers.
func (s *Scheduler) placeQueues(now Time) bool {
	p := s.part
	if len(p.out.Candidates)+len(p.out.Frees) > 0 || !p.places.stale && (!p.Waits() || len(p.places.queued) > placedMax) {
		return false
	}

	s.tellOutlooks()
	p.Place(now)
	return len(p.out.Candidates) > 0
}

// tellOutlooks passes the changed outlooks to the partition.
func (s *Scheduler) tellOutlooks() {
	for _, r := range s.rankers {
		if r != nil && r.moved {
			r.moved = false
			o := r.Outlook()
			s.part.SetOutlook(&o)
		}
	}
}

func (s *Scheduler) tell(r *Ranker) {
	if n := len(s.told); n == 0 || s.told[n-1] != r {
		s.told = append(s.told, r)
	}
}

// rank lets a ranker match and passes its grants to the partition.
func (s *Scheduler) rank(now Time, r *Ranker) {
	for _, g := range r.Advance(now) {
		s.part.Grant(now, g)
	}
	s.steps = append(s.steps, r.SpareSteps()...)
}
