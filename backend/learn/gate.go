package learn

import (
	"errors"
	"slices"
)

const (
	// surerBy is the number of standard errors by which the right class must be more probable to a candidate for it to
	// serve, and betterLeast the number by which its answers must be better: one that is only surer of the same answers
	// gains nothing. Answers that are better by aloneBy suffice, too: weights of many steps are less sure than the better
	// of two others may be. Candidates are judged repeatedly, so a bad one may pass by chance; therefore the version that
	// it replaced is still judged (docs/decisions/0387, 0406).
	surerBy     = 2
	betterLeast = 0.5
	aloneBy     = 2
	// betterBy is the number of standard errors by which a known version must be better to serve again.
	betterBy = 1.5
	// worseBy is the number of standard errors by which a candidate must be worse to be discarded, and the serving version
	// must be worse than the one before it for that to return. Many returns at 1.5 were by chance.
	worseBy = 2
	// evidenceKept is the weight of earlier judgements at the next one: the candidate has changed since.
	evidenceKept = 0.9
	// knownMost bounds the number of known versions, which are tried again after a drift.
	knownMost = 6
)

// errWorse is the reason for discarding a candidate with fewer right answers than the serving weights.
var errWorse = errors.New("the candidate has become worse than the serving weights")

// judgeCandidate compares the candidate with the serving weights on the fresh samples, and publishes or discards it.
// Afterwards the samples may be trained on.
func (l *Learner) judgeCandidate(r *Report) error {
	l.counts.Judged++
	l.sinceJudge = 0

	// Diverged weights do not recover by further training.
	if !isFinite(l.candidate) {
		return l.discard(r, &l.counts.NotFinite, errors.New("the candidate's weights are not all finite"))
	}

	candidate := l.trial
	list, err := l.answerJudged(r)
	if err != nil {
		return err
	}
	serves, err := l.answerServing(r, list)
	if err != nil {
		return err
	}
	now, err := l.compareAnswers(r, &l.counts.Answered.Candidates, serves, candidate, list)
	if err != nil {
		return err
	}

	// The serving version may prove worse than the one that it replaced. Then the older one serves again, and the
	// candidate must be better than that one.
	if back, err := l.judgePrevious(r, list); back || err != nil {
		return err
	}

	// Earlier states of the candidate count with decreasing weight, since it was trained further from them.
	l.evidence.follow(now)
	l.samples.use(len(list))

	switch {
	case l.evidence.errors() < -worseBy:
		return l.discard(r, &l.counts.Worse, errWorse)
	case !l.passes(&l.evidence, &now):
		return nil
	}
	return l.publishUnlessForgetful(r, candidate)
}

// answerJudged answers the samples that judge the candidate, and returns them.
func (l *Learner) answerJudged(r *Report) (list []Sample, err error) {
	for list = l.judgedBy(); !l.bothAnswered(list); list = l.judgedBy() {
		// Once these are answered, more of them may be needed.
		if err := l.answerBoth(r, list, &l.counts.Answered.Candidates); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// answerBoth lets the serving weights and those under judgement answer what they have not answered. It adds the number
// of the latter's answers to count.
func (l *Learner) answerBoth(r *Report, list []Sample, count *int) error {
	serving := answers{of: l.serving, list: list, count: &l.counts.Answered.Serving}
	trial := answers{of: l.trial, list: list, count: count}
	return errors.Join(serving.answerAll(r), trial.answerAll(r))
}

// passes reports whether a candidate is surer of the right classes and answers better than the serving weights, or
// answers much better, by all evidence, and not worse by the latest.
func (l *Learner) passes(all, now *evidence) bool {
	better := all.errors() > aloneBy || all.sureErrors() > surerBy && all.errors() > betterLeast
	return better && now.gain() >= 0 && !l.held
}

// judgePrevious compares the version before the serving one on the same samples. If it is better, it serves again,
// and the candidate goes on.
func (l *Learner) judgePrevious(r *Report, list []Sample) (back bool, err error) {
	if l.previous == nil {
		return false, nil
	}

	part := l.previousJudgedBy(list)
	for ; len(l.previous.unjudged(part, 1)) > 0; part = l.previousJudgedBy(list) {
		if err := (answers{of: l.previous, list: part, count: &l.counts.Answered.Previous}).answerAll(r); err != nil {
			return false, err
		}
	}
	now := knownEvidence(l.serving, l.previous, part)
	l.regret.follow(now)
	if l.against.follow(now); l.against.errors() < -worseBy {
		l.dropPrevious()
	}
	if l.regret.errors() <= worseBy {
		return false, nil
	}

	l.samples.use(len(list))
	before, better := l.versions[len(l.versions)-2], l.regret
	better.exits = before.evidence.exits
	if err := l.publish(before.Weights, better); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return true, nil
	}
	r.Published = true
	l.counts.Reverted++

	// The candidate goes on from where it is: its steps since are not lost, and it must beat the returned version.
	return true, nil
}

// answerServing returns the serving weights' answers to samples, and updates the evidence about their exits.
func (l *Learner) answerServing(r *Report, list []Sample) (serves []bool, err error) {
	serves, now, answered, err := l.serving.judgeSamples(list)
	if err != nil {
		return serves, err
	}
	r.Inputs += answered
	l.counts.Answered.Serving += answered

	current := &l.versions[len(l.versions)-1]
	current.evidence.follow(now)
	current.ExitGaps = current.evidence.exitGaps()
	return serves, nil
}

// compareAnswers answers, with a judge's weights, the samples that the serving weights have answered. It adds the
// number of new answers to count.
func (l *Learner) compareAnswers(r *Report, count *int, serves []bool, with *judge, list []Sample) (e evidence, err error) {
	trained, exits, answered, err := with.judgeSamples(list)
	if err != nil {
		return e, err
	}

	r.Inputs += answered
	*count += answered
	r.Serving, r.Candidate = RightShare(serves), RightShare(trained)
	e = knownEvidence(l.serving, with, list)
	e.exits = exits.exits
	return e, nil
}

// publishUnlessForgetful publishes a candidate unless it has forgotten too much of the first data.
func (l *Learner) publishUnlessForgetful(r *Report, candidate *judge) error {
	gain := l.evidence.gain()
	kept, tooMuch, err := l.forgets(r, candidate, gain)
	switch {
	case err != nil:
		return err

	// Discard a candidate that has certainly forgotten; one that may have forgotten goes on learning.
	case tooMuch && lostTooMuch(kept, gain, worseBy):
		return l.discard(r, &l.counts.Worse, errWorse)
	case tooMuch:
		return nil
	}

	remembers, _, err := candidate.see(l.samples.judgesOld)
	if err != nil {
		return err
	}

	// Judge exits by the first data, too: on a few dozen samples of the present they would be right by chance.
	exits := l.evidence
	exits.exits = slices.Clone(exits.exits)
	exits.addExits(remembers)

	// A failed publication, on a full disk or a lost GPU, keeps the candidate for the next judgement.
	if err := l.publish(l.candidate, exits); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return nil
	}
	r.Published = true
	l.gain.NotePublished(exits.gain())
	return nil
}

// discard discards the candidate and lowers the learning rate until the next drift: the next candidate would otherwise
// be likely to fail in the same way.
func (l *Learner) discard(r *Report, count *int, why error) error {
	*count++
	r.Discarded = why

	l.rate /= 2
	return l.restartCandidate()
}
