package sched

import "fmt"

// OfferSpare makes spare work known to a sub-cluster's Ranker, or changes it: see Ranker.OfferSpare.
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

// WithdrawSpare forgets spare work of a sub-cluster: see Ranker.WithdrawSpare.
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

// SpareSteps returns the steps to start, valid until the next call: as long as Actions.
func (s *Scheduler) SpareSteps() []SpareStep {
	s.drained = s.drained || len(s.steps) > 0
	return s.steps
}

// SpareStats returns the counters of spare work of all rankers together.
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
