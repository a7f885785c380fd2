package learn

import (
	"errors"
	"math"
	"slices"
)

const (
	// betterBy is the number of standard errors by which a candidate must be better to serve. Candidates are judged
	// repeatedly, so a bad one may pass by chance; therefore the version that it replaced is still judged. With one
	// standard error versions alternate; with two, a better version waits twice as long (docs/decisions/0152).
	betterBy = 1.5
	// worseBy is the number of standard errors by which a candidate must be worse to be discarded, and the serving version
	// must be worse than the one before it for that to return. Many returns at 1.5 were by chance.
	worseBy = 2
	// evidenceKept is the weight of earlier judgements at the next one: the candidate has changed since.
	evidenceKept = 0.9
	// knownMost bounds the number of known versions, which are tried again after a drift.
	knownMost = 6
)

// evidence counts the answers of a candidate and the serving weights to the same samples. Only samples that they
// answer differently show which one is better (McNemar 1947).
type evidence struct {
	judged      float64    // samples
	plus, minus float64    // right only for the candidate, and only for the serving weights
	exits       []evidence // of each early exit of the candidate, compared with the whole candidate
}

// add counts answers to the same samples.
func (e *evidence) add(serving, candidate []bool) {
	e.judged += float64(len(serving))
	for i := range serving {
		switch {
		case candidate[i] && !serving[i]:
			e.plus++
		case serving[i] && !candidate[i]:
			e.minus++
		}
	}
}

// addExits counts the answers of a net's exits, compared with the whole net.
func (e *evidence) addExits(now sight) {
	e.exits = slices.Grow(e.exits, len(now.exits))[:len(now.exits)]
	for k, right := range now.exits {
		e.exits[k].add(now.right, right)
	}
}

// follow adds newer answers and reduces the weight of older ones.
func (e *evidence) follow(now evidence) {
	e.judged, e.plus, e.minus = evidenceKept*e.judged+now.judged, evidenceKept*e.plus+now.plus, evidenceKept*e.minus+now.minus

	// Clone: other evidence may share the slice of exits. The exits may have no newer answers.
	older := e.exits
	if now.exits == nil {
		return
	}
	e.exits = slices.Clone(now.exits)
	for k := range older {
		e.exits[k] = older[k]
		e.exits[k].follow(now.exits[k])
	}
}

// exitGaps returns, for each exit, the share of right answers of the whole net minus that of the exit.
func (e *evidence) exitGaps() (gaps []float64) {
	for k := range e.exits {
		gaps = append(gaps, -e.exits[k].gain())
	}
	return gaps
}

// gain returns the candidate's share of right answers minus that of the serving weights.
func (e *evidence) gain() float64 { return (e.plus - e.minus) / max(1, e.judged) }

// standardError returns the standard error of the gain between two equally good versions.
func (e *evidence) standardError() float64 {
	return math.Sqrt(max(1, e.plus+e.minus)) / max(1, e.judged)
}

// errors returns the gain in standard errors.
func (e *evidence) errors() float64 { return e.gain() / e.standardError() }

// errWorse is the reason for discarding a candidate with fewer right answers than the serving weights.
var errWorse = errors.New("the candidate has become worse than the serving weights")

// judgeCandidate compares the candidate with the serving weights on the fresh samples, and publishes or discards it.
// Afterwards the samples may be trained on.
func (l *Learner) judgeCandidate(r *Report) error {
	l.counts.Judged++
	steps := l.sinceJudge
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
	now, err := compareAnswers(r, &l.counts.Answered.Candidates, serves, candidate, list)
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
	l.noteGain(steps)

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

// passes reports whether a candidate is better than the serving weights, by all evidence and by the latest.
func (l *Learner) passes(all, now *evidence) bool {
	return all.errors() > betterBy && now.gain() >= 0 && !l.held
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
func compareAnswers(r *Report, count *int, serves []bool, with *judge, list []Sample) (e evidence, err error) {
	trained, exits, answered, err := with.judgeSamples(list)
	if err != nil {
		return e, err
	}

	r.Inputs += answered
	*count += answered
	r.Serving, r.Candidate = RightShare(serves), RightShare(trained)
	e.add(serves, trained)
	e.exits = exits.exits
	return e, nil
}

// publishUnlessForgetful publishes a candidate unless its accuracy on the first data has fallen by more than forgetMost.
func (l *Learner) publishUnlessForgetful(r *Report, candidate *judge) error {
	remembers, answered, err := candidate.see(l.samples.judgesOld)
	if err != nil {
		return err
	}
	r.Inputs += answered
	l.counts.Answered.First += answered
	var kept evidence
	kept.add(l.first, remembers.right)

	// Discard a candidate that has certainly forgotten; one that may have forgotten goes on learning.
	if kept.gain() < -forgetMost-worseBy*kept.standardError() {
		return l.discard(r, &l.counts.Worse, errWorse)
	}
	if kept.gain() < -forgetMost {
		return nil
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

// noteGain records the gain per step since the best earlier state of the candidate.
func (l *Learner) noteGain(steps int) {
	gain := max(0, l.evidence.gain()-l.best)
	l.best += gain
	l.gains = append(l.gains, gain/float64(max(1, steps)))
	l.gains = l.gains[max(0, len(l.gains)-gainsKept):]
}
