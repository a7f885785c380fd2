//go:build linux

package downbeat

import "downbeat.dev/backend/learn"

// Learned returns the version of a model's weights that this process's learner has put in service, and the learner's
// counters. Both are zero if nothing here learns the model.
func (s *System) Learned(model string) (version int, counts learn.Counts) {
	for _, l := range s.learners {
		if l.Name() == model {
			return l.Version()
		}
	}

	return 0, learn.Counts{}
}

// standings returns the state of each learner of this process.
func (s *System) standings() any {
	all := []learn.Standing{}
	for _, l := range s.learners {
		all = append(all, l.Standing())
	}
	return all
}

// SpareSteps returns the number of steps of spare work that this process's scheduler has started.
func (s *System) SpareSteps() (steps uint64) {
	if s.engine == nil {
		return 0
	}

	for _, l := range s.engine.Stats().Load {
		steps += l.Spare.Steps
	}

	return steps
}
