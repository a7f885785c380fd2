//go:build linux

package downbeat

import "downbeat.dev/backend/learn"

// Learned tells which version of a model's weights the learner in this process has serve, and what it has done; zeros
// where nothing learns the model here.
func (s *System) Learned(model string) (version int, counts learn.Counts) {
	for _, l := range s.learners {
		if l.Name() == model {
			return l.Version()
		}
	}

	return 0, learn.Counts{}
}

// standings tells how all learners of this process stand.
func (s *System) standings() any {
	all := []learn.Standing{}
	for _, l := range s.learners {
		all = append(all, l.Standing())
	}
	return all
}

// SpareSteps is how many steps of spare work the scheduler in this process has started.
func (s *System) SpareSteps() (steps uint64) {
	if s.engine == nil {
		return 0
	}

	for _, l := range s.engine.Stats().Load {
		steps += l.Spare.Steps
	}

	return steps
}
