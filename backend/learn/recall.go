package learn

import "slices"

// Conditions that change often also change back: the night returns. A version that served when a drift came was good
// for the time before it. So after a drift the learner first checks whether one of those versions is now better than
// the serving one, which takes some answers and no training.

// keepKnown stores the serving version as good for the time that has just ended, and queues the known versions to be
// tried again.
func (l *Learner) keepKnown() {
	l.recalled = slices.Clone(l.known)
	l.bestRecalled, l.recallErrors = nil, betterBy

	current := l.current()
	l.known = slices.DeleteFunc(l.known, func(v Version) bool { return slices.Equal(v.Weights, current.Weights) })
	l.known = append(l.known, current)

	// They are in the order in which they served last.
	if len(l.known) > knownMost {
		l.known = l.known[1:]
	}
}

// recalledBy returns the samples that judge known versions: none of them existed when these were trained.
func (l *Learner) recalledBy() []Sample {
	return slices.Concat(l.samples.recent.samples, l.samples.fresh)
}

// recallFirst is the number of samples after which a known version may be given up.
const recallFirst = 64

func firstRecalled(list []Sample) []Sample { return list[:min(recallFirst, len(list))] }

// recalledNext returns the samples that a brief step answers for the known version under judgement.
func (l *Learner) recalledNext() []Sample {
	list := l.recalledBy()
	first := firstRecalled(list)
	if len(l.serving.unjudged(first, 1))+len(l.trial.unjudged(first, 1)) > 0 {
		return first
	}

	if now := l.knownEvidence(first); now.givenUp() {
		return first
	}
	return list
}

// givenUp reports whether a known version is so much worse on the first samples that the others are not answered. To
// serve again it must be better on all of them.
func (e *evidence) givenUp() bool { return e.errors() < -betterBy }

// judgeRecalled compares one known version with the serving one, on the samples since the drift. After the last known
// version, it publishes the best one if it is better.
func (l *Learner) judgeRecalled(r *Report) error {
	l.counts.Judged++
	version := l.recalled[0]
	l.recalled = l.recalled[1:]

	if l.trial != nil {
		now, err := l.compareRecalled(r)
		if err != nil {
			return err
		}
		if by := now.errors(); by > l.recallErrors {
			l.bestRecalled, l.recallErrors = version.Weights, by
			l.recallEvidence = now
		}
	}

	// The candidate starts from the best one.
	if len(l.recalled) > 0 || l.bestRecalled == nil || l.held {
		return nil
	}
	if err := l.publish(l.bestRecalled, l.recallEvidence); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return nil
	}
	r.Published = true
	l.counts.Recalled++
	return l.restartCandidate()
}

// compareRecalled compares the known version under judgement with the serving one.
func (l *Learner) compareRecalled(r *Report) (now evidence, err error) {
	list := l.recalledBy()
	for _, part := range [2][]Sample{firstRecalled(list), list} {
		serves, _, answered, err := l.serving.judgeSamples(part)
		if err != nil {
			return now, err
		}
		r.Inputs += answered
		l.counts.Answered.Serving += answered

		if now, err = compareAnswers(r, &l.counts.Answered.Known, serves, l.trial, part); err != nil || now.givenUp() {
			return now, err
		}
	}
	return now, nil
}
