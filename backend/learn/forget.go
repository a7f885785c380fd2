package learn

// What a candidate loses of the first data is what the data would cost that comes back, until the drift is noticed and the
// first weights serve again, which are always known. What it gains on the present counts until then. So it may lose more of
// the first data the more it gains, and what it loses cannot add up: it counts from the first weights on.

// forgetMost is the loss of accuracy on the first data that a candidate may have whatever it gains.
const forgetMost = 0.02

// lostTooMuch reports whether weights that kept so much of the first data, compared with the first weights, have lost more than a
// candidate may that gains so much on the present, compared with the serving ones: more by this many standard errors.
func lostTooMuch(kept evidence, gain, errors float64) bool {
	return -kept.gain() > forgetMost+max(0, gain)+errors*kept.standardError()
}

// keptBy compares weights that have answered the samples of the first data with the first weights.
func (l *Learner) keptBy(j *judge) (kept evidence) {
	var right []bool
	for _, s := range l.samples.judgesOld {
		one, _ := j.isRight(s)
		right = append(right, one)
	}
	kept.add(l.first, right)
	return kept
}

// forgets returns what a candidate with a gain on the present keeps of the first data, and whether it has forgotten too
// much: more than it may lose, and more than the serving weights.
func (l *Learner) forgets(r *Report, candidate *judge, gain float64) (kept evidence, tooMuch bool, err error) {
	if err := l.answerFirst(r, candidate); err != nil {
		return kept, false, err
	}
	if kept = l.keptBy(candidate); !lostTooMuch(kept, gain, 0) {
		return kept, false, nil
	}

	if err := l.answerFirst(r, l.serving); err != nil {
		return kept, false, err
	}
	serves := l.keptBy(l.serving)
	return kept, kept.gain() < serves.gain(), nil
}

// answerFirst answers the samples of the first data.
func (l *Learner) answerFirst(r *Report, j *judge) error {
	_, answered, err := j.see(l.samples.judgesOld)
	r.Inputs += answered
	l.counts.Answered.First += answered
	return err
}

// firstAnswers returns the next answers to samples of the first data that forgets needs for the weights under judgement.
func (l *Learner) firstAnswers(gain float64) answers {
	old := l.samples.judgesOld
	need := answers{of: l.trial, list: l.trial.unseen(old, l.trial.batch), count: &l.counts.Answered.First}
	if len(need.list) > 0 {
		return need
	}

	if lostTooMuch(l.keptBy(l.trial), gain, 0) {
		need.of, need.list = l.serving, l.serving.unseen(old, l.serving.batch)
	}
	if len(need.list) == 0 {
		need.of = nil
	}
	return need
}
