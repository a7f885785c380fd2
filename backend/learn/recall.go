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

	// They are in the order in which they served last. The first one stays: candidates may forget what it knows.
	if len(l.known) > knownMost {
		oldest := 0
		if slices.Equal(l.known[0].Weights, l.start.Weights) {
			oldest = 1
		}
		l.known = slices.Delete(l.known, oldest, oldest+1)
	}
}

// recalledBy returns the samples that judge known versions: none of them existed when these were trained.
func (l *Learner) recalledBy() []Sample {
	list := slices.Concat(l.samples.recent.samples, l.samples.fresh)
	return list[:min(recallMost, len(list))]
}

// recallMost is the largest number of samples that judge a known version.
const recallMost = 256

// recallStages are numbers of samples after which a known version is given up if it is not better by some standard
// errors. To serve again it must be better on all samples.
var recallStages = [...]struct {
	samples int
	errors  float64
}{{32, -1.5}, {64, -1}, {128, 0}}

// recalledNext returns the samples that judge the known version under judgement, as far as the answers that are known
// tell: all, or those after which it is given up, or of which an answer is not known.
func (l *Learner) recalledNext() []Sample {
	list := l.recalledBy()
	for _, stage := range recallStages {
		first := list[:min(stage.samples, len(list))]
		if !l.bothAnswered(first) {
			return first
		}
		if now := knownEvidence(l.serving, l.trial, first); now.errors() < stage.errors {
			return first
		}
	}
	return list
}

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
	l.gain.NotePublished(l.recallEvidence.gain())
	return l.restartCandidate()
}

// compareRecalled compares the known version under judgement with the serving one.
func (l *Learner) compareRecalled(r *Report) (now evidence, err error) {
	list := l.recalledNext()
	for ; !l.bothAnswered(list); list = l.recalledNext() {
		if err := l.answerBoth(r, list, &l.counts.Answered.Known); err != nil {
			return now, err
		}
	}

	serves, _, _, err := l.serving.judgeSamples(list)
	if err != nil {
		return now, err
	}
	return l.compareAnswers(r, &l.counts.Answered.Known, serves, l.trial, list)
}
