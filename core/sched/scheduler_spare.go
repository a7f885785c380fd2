package sched

import "fmt"

// OfferSpare adds or changes spare work of a sub-cluster's Ranker: see Ranker.OfferSpare.
func (s *Scheduler) OfferSpare(now Time, subCluster uint32, w SpareWork) error {
	s.reset()
	if int(subCluster) >= len(s.rankers) || s.rankers[subCluster] == nil {
		return fmt.Errorf("sched: spare work %d: sub-cluster %d: %w", w.ID, subCluster, ErrUnknown)
	}
	r := s.rankers[subCluster]
	first := r.spare == nil
	if err := r.OfferSpare(now, w); err != nil {
		return err
	}

	if first {
		s.part.SetForecasts(now, true)
		s.pump(now)
	}
	s.rank(now, r)
	s.pump(now)
	return nil
}

// WithdrawSpare removes spare work of a sub-cluster: see Ranker.WithdrawSpare.
func (s *Scheduler) WithdrawSpare(now Time, subCluster uint32, id WorkID) {
	s.reset()
	if int(subCluster) < len(s.rankers) && s.rankers[subCluster] != nil {
		s.rankers[subCluster].WithdrawSpare(now, id)
	}
}

// EndSpare answers a SpareStep: see Ranker.EndSpare.
func (s *Scheduler) EndSpare(now Time, id GPUID, epoch uint32, freeAt Time) error {
	s.reset()
	r := s.ranker(id)
	if r == nil {
		return fmt.Errorf("sched: gpu %d: %w", id, ErrUnknown)
	}
	if err := r.EndSpare(now, id, epoch, freeAt); err != nil {
		return err
	}
	s.rank(now, r)
	s.pump(now)
	return nil
}

// SpareSteps returns the steps to start, valid as long as Actions: until the next call.
func (s *Scheduler) SpareSteps() []SpareStep {
	s.drained = s.drained || len(s.steps) > 0
	return s.steps
}

// SpareStats returns the sums of all rankers' counters of spare work.
func (s *Scheduler) SpareStats() SpareStats {
	var sum SpareStats
	for _, r := range s.rankers {
		if r != nil {
			x := r.SpareStats()
			sum.Steps += x.Steps
			sum.Time += x.Time
			sum.Overrun += x.Overrun
			sum.Lost += x.Lost
			sum.Stale += x.Stale
		}
	}
	return sum
}
