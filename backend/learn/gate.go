package learn

import (
	"errors"
	"math"
	"slices"
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
	judged      float64    // samples
	plus, minus float64    // that only the candidate, and only the serving weights, answered rightly
	exits       []evidence // of each early exit of the candidate, beside the whole candidate
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

// addExits counts what the exits of a net answered beside the whole of it.
func (e *evidence) addExits(now sight) {
	e.exits = slices.Grow(e.exits, len(now.exits))[:len(now.exits)]
	for k, right := range now.exits {
		e.exits[k].add(now.right, right)
	}
}

// follow adds newer answers, and lets the older ones count less.
func (e *evidence) follow(now evidence) {
	e.judged, e.plus, e.minus = evidenceKept*e.judged+now.judged, evidenceKept*e.plus+now.plus, evidenceKept*e.minus+now.minus

	// Other evidence may hold the same exits: theirs must stay.
	older := e.exits
	e.exits = slices.Clone(now.exits)
	for k := range older {
		e.exits[k] = older[k]
		e.exits[k].follow(now.exits[k])
	}
}

// exitGaps is by how much less of the samples each exit answered rightly than the whole net.
func (e *evidence) exitGaps() (gaps []float64) {
	for k := range e.exits {
		gaps = append(gaps, -e.exits[k].gain())
	}
	return gaps
}

// gain is by how much more of the samples the candidate answered rightly.
func (e *evidence) gain() float64 { return (e.plus - e.minus) / max(1, e.judged) }

// standardError is the standard error of what chance makes of two equals.
func (e *evidence) standardError() float64 {
	return math.Sqrt(max(1, e.plus+e.minus)) / max(1, e.judged)
}

// errors is the gain in standard errors.
func (e *evidence) errors() float64 { return e.gain() / e.standardError() }

// errWorse is why a candidate is thrown away that answers less than what serves.
var errWorse = errors.New("the candidate has become worse than the serving weights")

// judgeCandidate compares the candidate with the serving weights on the fresh samples, and publishes or discards it. The
// samples are trained on from then on.
func (l *Learner) judgeCandidate(r *Report) error {
	l.counts.Judged++
	steps := l.sinceJudge
	l.sinceJudge = 0

	// Weights that have diverged do not come back by training.
	if !isFinite(l.candidate) {
		return l.discard(r, &l.counts.NotFinite, errors.New("the candidate's weights are not all finite"))
	}

	candidate := l.trial
	list := l.judgedBy()
	serves, err := l.answerServing(r, list)
	if err != nil {
		return err
	}
	now, err := compareAnswers(r, serves, candidate, list)
	if err != nil {
		return err
	}

	// What serves may prove worse than what it replaced. Then that serves again, and the candidate, trained from the worse one, goes.
	if back, err := l.judgePrevious(r, serves, list); back || err != nil {
		return err
	}

	// The candidate's forebears count too, less and less: it has been trained further from them.
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

// passes tells whether a candidate is better than what serves, by all evidence and by the latest.
func (l *Learner) passes(all, now *evidence) bool {
	return all.errors() > betterBy && now.gain() >= 0 && !l.held
}

// judgePrevious lets the version before the serving one answer the same samples. If that is better after all, it serves
// again, and training goes on from it.
func (l *Learner) judgePrevious(r *Report, serves sight, list []Sample) (back bool, err error) {
	if l.previous == nil {
		return false, nil
	}

	// The report is the candidate's.
	var own Report
	now, err := compareAnswers(&own, serves, l.previous, list)
	if err != nil {
		return false, err
	}
	r.Inputs += own.Inputs
	if l.regret.follow(now); l.regret.errors() <= betterBy {
		return false, nil
	}

	l.samples.use(len(list))
	weights := l.versions[len(l.versions)-2].Weights
	if err := l.publish(weights, l.regret); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return true, nil
	}
	r.Published = true
	l.counts.Reverted++
	return true, l.restartCandidate()
}

// answerServing lets the serving weights answer samples, which also tells how good their exits are now.
func (l *Learner) answerServing(r *Report, list []Sample) (serves sight, err error) {
	if serves, _, err = l.serving.see(list); err != nil {
		return serves, err
	}
	r.Inputs += len(list)

	var now evidence
	now.addExits(serves)
	current := &l.versions[len(l.versions)-1]
	current.evidence.follow(now)
	current.ExitGaps = current.evidence.exitGaps()
	return serves, nil
}

// compareAnswers lets a judge's weights answer the samples that the serving ones have answered.
func compareAnswers(r *Report, serves sight, with *judge, list []Sample) (e evidence, err error) {
	trained, _, err := with.see(list)
	if err != nil {
		return e, err
	}

	r.Inputs += len(list)
	r.Serving, r.Candidate = rightShare(serves.right), rightShare(trained.right)
	e.add(serves.right, trained.right)
	e.addExits(trained)
	return e, nil
}

// publishUnlessForgetful puts a candidate in force that has not lost what the first weights could on the first data.
func (l *Learner) publishUnlessForgetful(r *Report, candidate *judge) error {
	remembers, _, err := candidate.see(l.samples.judgesOld)
	if err != nil {
		return err
	}
	r.Inputs += len(remembers.right)
	var kept evidence
	kept.add(l.first, remembers.right)

	// A candidate that has surely forgotten is thrown away; one that may have goes on learning.
	if kept.gain() < -forgetMost-worseBy*kept.standardError() {
		return l.discard(r, &l.counts.Worse, errWorse)
	}
	if kept.gain() < -forgetMost {
		return nil
	}

	// Exits are told of by the first data as well: a few dozen samples of the present would be right by chance.
	exits := l.evidence
	exits.exits = slices.Clone(exits.exits)
	exits.addExits(remembers)

	// A publication that fails, on a full disk or a lost GPU, leaves the candidate for the next judgement.
	if err := l.publish(l.candidate, exits); err != nil {
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
