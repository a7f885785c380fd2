package learn

import (
	"errors"
	"math"
)

const (
	// betterBy is the standard errors by which a candidate must be better to serve, or the version before it to serve
	// again. Candidates are judged again and again, so that one may pass by chance: what it replaced goes on being judged.
	// With one error versions go to and fro, with two a better one waits twice as long (docs/decisions/0152).
	betterBy = 1.5
	// worseBy is the standard errors by which a candidate must be worse to be thrown away.
	worseBy = 2
	// evidenceKept is what a judgement counts after the next one: the candidate has moved on.
	evidenceKept = 0.8
	// knownMost bounds the versions that are tried again when the world changes.
	knownMost = 6
)

// evidence is how a candidate and the serving weights answered the same samples. Only those on which the two differ say
// which is better (McNemar 1947).
type evidence struct {
	judged      float64 // samples
	plus, minus float64 // that only the candidate, and only the serving weights, answered rightly
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

// follow adds newer answers, and lets the older ones count less.
func (e *evidence) follow(now evidence) {
	e.judged, e.plus, e.minus = evidenceKept*e.judged+now.judged, evidenceKept*e.plus+now.plus, evidenceKept*e.minus+now.minus
}

// gain is by how much more of the samples the candidate answered rightly.
func (e *evidence) gain() float64 { return (e.plus - e.minus) / max(1, e.judged) }

// errors is the gain in standard errors of what chance makes of two equals.
func (e *evidence) errors() float64 { return (e.plus - e.minus) / math.Sqrt(max(1, e.plus+e.minus)) }

// errWorse is why a candidate is thrown away that answers less than what serves.
var errWorse = errors.New("the candidate has become worse than the serving weights")

// judgeCandidate compares the candidate with the serving weights on the fresh samples, and publishes or discards it. The
// samples are trained on from then on.
func (l *Learner) judgeCandidate(r *Report) error {
	l.counts.Judged++
	steps := l.sinceJudge
	l.sinceJudge = 0
	if !isFinite(l.candidate) {
		return l.discard(r, &l.counts.NotFinite, errors.New("the candidate's weights are not all finite"))
	}

	candidate, err := newJudge(l.options, l.candidate)
	if err != nil {
		return err
	}
	defer candidate.close()

	// Of many samples that came at once half judge the next candidates.
	n := max(judgedMin, len(l.samples.fresh)/2)
	list := l.samples.fresh[:n]
	now, err := l.compare(r, candidate, list)
	if err != nil {
		return err
	}
	if back, err := l.judgePrevious(r, list); back || err != nil {
		return err
	}

	// The candidate's forebears count too, less and less: it has been trained further from them.
	l.evidence.follow(now)
	l.samples.use(n)
	l.noteGain(steps)

	switch {
	case l.evidence.errors() < -worseBy:
		return l.discard(r, &l.counts.Worse, errWorse)
	case l.evidence.errors() <= betterBy || now.gain() < 0 || l.held:
		return nil
	}
	return l.publishUnlessForgetful(r, candidate)
}

// judgePrevious lets the version before the serving one answer the same samples. If that is better after all, it serves
// again, and training goes on from it.
func (l *Learner) judgePrevious(r *Report, list []Sample) (back bool, err error) {
	if l.previous == nil {
		return false, nil
	}

	// The report is the candidate's.
	var own Report
	now, err := l.compare(&own, l.previous, list)
	if err != nil {
		return false, err
	}
	r.Inputs += own.Inputs
	if l.regret.follow(now); l.regret.errors() <= betterBy {
		return false, nil
	}

	l.samples.use(len(list))
	weights := l.versions[len(l.versions)-2].Weights
	if err := l.publish(weights); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return true, nil
	}
	r.Published = true
	l.counts.Reverted++
	return true, l.restartCandidate()
}

// compare lets the serving weights and a judge's answer the same samples.
func (l *Learner) compare(r *Report, with *judge, list []Sample) (e evidence, err error) {
	serves, _, err := l.serving.answerSamples(list)
	if err != nil {
		return e, err
	}
	trained, _, err := with.answerSamples(list)
	if err != nil {
		return e, err
	}

	r.Inputs += 2 * len(list)
	r.Serving, r.Candidate = rightShare(serves), rightShare(trained)
	e.add(serves, trained)
	return e, nil
}

// publishUnlessForgetful puts a candidate in force that has not lost what the first weights could on the first data.
func (l *Learner) publishUnlessForgetful(r *Report, candidate *judge) error {
	remembers, _, err := candidate.answerSamples(l.samples.judgesOld)
	if err != nil {
		return err
	}
	r.Inputs += len(remembers)
	kept, slack := comparePaired(l.first, remembers)
	if kept < -forgetMost-worseBy*slack {
		return l.discard(r, &l.counts.Worse, errWorse)
	}
	if kept < -forgetMost {
		return nil
	}

	// A publication that fails, on a full disk or a lost GPU, leaves the candidate for the next judgement.
	if err := l.publish(l.candidate); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return nil
	}
	r.Published = true
	return nil
}

// discard throws the candidate away. What made it worse is likely to do so again, so that the next one learns more
// slowly.
func (l *Learner) discard(r *Report, count *int, why error) error {
	*count++
	r.Discarded = why

	l.options.Rate /= 2
	return l.restartCandidate()
}

// noteGain notes what each of the candidate's last steps has gained over the best of its forebears.
func (l *Learner) noteGain(steps int) {
	gain := max(0, l.evidence.gain()-l.best)
	l.best += gain
	l.gains = append(l.gains, gain/float64(max(1, steps)))
	l.gains = l.gains[max(0, len(l.gains)-gainsKept):]
}
