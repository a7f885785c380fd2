package learn

import "slices"

// A world that changes often changes back: the night comes again. What served when a drift came is known to be good for
// the time before it, so a drift first asks whether one of those versions is better now than what serves. That takes some
// answers and no training.

// keepKnown keeps what serves as good for the time that has just ended, and has those kept before tried again.
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

// recalledBy are the samples that judge what served once: none of them was there when it was trained.
func (l *Learner) recalledBy() []Sample {
	return slices.Concat(l.samples.recent.samples, l.samples.fresh)
}

// judgeRecalled compares one version that was good once with what serves, on the samples since the drift, and after the
// last of them publishes the best if it is better.
func (l *Learner) judgeRecalled(r *Report) error {
	l.counts.Judged++
	version := l.recalled[0]
	l.recalled = l.recalled[1:]

	if l.trial != nil {
		list := l.recalledBy()
		serves, err := l.answerServing(r, list)
		if err != nil {
			return err
		}
		now, err := compareAnswers(r, serves, l.trial, list)
		if err != nil {
			return err
		}
		if by := now.errors(); by > l.recallErrors {
			l.bestRecalled, l.recallErrors = version.Weights, by
			l.recallEvidence = now
		}
	}

	// The candidate begins where the best one ends.
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
