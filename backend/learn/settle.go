package learn

import (
	"slices"
	"time"
)

// Judgements and looks for drift need some hundred answers. A learner with brief steps computes them one batch at a
// time: Settle opens a judgement, steps compute its answers, and Settle ends it. BeginLook and Look do the same for a
// look.

// lookUnits is the part of a drift test in one brief step, about a millisecond.
const lookUnits = 32

// settlementDue reports whether a judgement is due.
func (l *Learner) settlementDue() bool {
	due := l.learning && l.canTrain() && l.sinceJudge >= judgeEvery && len(l.samples.fresh) >= judgedMin
	return len(l.recalled) > 0 || due
}

// Settling reports whether Settle has work: a judgement is due, or has all its answers.
func (l *Learner) Settling() bool {
	if !l.settlementDue() {
		return false
	}
	return !l.options.Brief || !l.opened || l.nextAnswers().of == nil
}

// Settle opens the due judgement, if any, and completes it when its answers exist. If steps are not brief, it
// computes the answers itself. Publishing takes as long as Options.Publish.
func (l *Learner) Settle() (r Report, err error) {
	if !l.Settling() {
		return r, nil
	}

	began := time.Now()
	if !l.opened {
		if err := l.openTrial(); err != nil {
			return r, err
		}
		if l.options.Brief {
			r.Took = time.Since(began)
			return r, nil
		}
	}

	// Try known versions before the newly trained candidate.
	r.Work = Judging
	if len(l.recalled) > 0 {
		err = l.judgeRecalled(&r)
	} else {
		err = l.judgeCandidate(&r)
	}
	l.closeTrial()
	r.Took = time.Since(began)
	return r, err
}

// openTrial creates the judge of the weights to be judged, unless they are not finite or already serve.
func (l *Learner) openTrial() (err error) {
	judged := Version{Weights: l.candidate}
	if len(l.recalled) > 0 {
		judged = l.recalled[0]
	}

	l.opened = true
	if isFinite(judged.Weights) && !(len(l.recalled) > 0 && slices.Equal(judged.Weights, l.Weights())) {
		l.trial, err = newJudge(l.options, judged.Number, judged.Weights)
	}
	return err
}

func (l *Learner) closeTrial() {
	if l.trial != nil {
		l.trial.close()
	}
	l.trial, l.opened = nil, false

	l.serving.forgetMany()
	if l.previous != nil {
		l.previous.forgetMany()
	}
}

// judgedBy returns the samples that judge a candidate. The first of them suffice if it is not better by them: it would
// hardly be published by all. If many arrived at once, half of them judge the next candidates.
func (l *Learner) judgedBy() []Sample {
	fresh := l.samples.fresh
	first := fresh[:judgedMin]
	if l.trial == nil || !l.bothAnswered(first) {
		return first
	}
	if all := l.evidenceWith(first); all.gain() < 0 {
		return first
	}
	return fresh[:max(judgedMin, len(fresh)/2)]
}

// bothAnswered reports whether the answers of the serving weights and of those under judgement are known.
func (l *Learner) bothAnswered(list []Sample) bool {
	return len(l.serving.unjudged(list, 1))+len(l.trial.unjudged(list, 1)) == 0
}

// evidenceWith returns all evidence for the candidate, the known answers to these samples included.
func (l *Learner) evidenceWith(list []Sample) evidence {
	all := l.evidence
	all.follow(knownEvidence(l.serving, l.trial, list))
	return all
}

// answers are samples that a judge is to answer next.
type answers struct {
	of   *judge // nil: all answers exist
	list []Sample
	// features are needed, so that answers given to requests do not do.
	features bool
	count    *int // of such answers
}

// nextBatch returns the samples of the next batch.
func (a answers) nextBatch() []Sample {
	if a.features {
		return a.of.unseen(a.list, a.of.batch)
	}
	return a.of.unjudged(a.list, a.of.batch)
}

// answerAll answers the samples whose answers are not known.
func (a answers) answerAll(r *Report) error {
	list := a.of.unjudged(a.list, len(a.list))
	r.Inputs += len(list)
	*a.count += len(list)
	return a.of.seeSome(list)
}

// nextAnswers returns a batch of the missing answers of the look or judgement under way.
func (l *Learner) nextAnswers() answers {
	var needs []answers
	did := &l.counts.Answered
	if l.looking && l.test == nil {
		needs = append(needs, answers{l.serving, l.referredTo(), true, &did.Reference}, answers{l.serving, l.lookedAt(), true, &did.Window})
	}
	if l.opened && l.trial != nil && l.settlementDue() {
		needs = append(needs, l.trialAnswers()...)
	}

	// The alarm comes first: it is to notice a loss soon.
	if list := l.watchNext(l.serving.batch); list != nil {
		return answers{of: l.serving, list: list, count: &did.Watched}
	}

	for _, n := range needs {
		if list := n.nextBatch(); len(list) > 0 {
			return answers{of: n.of, list: list, count: n.count}
		}
	}

	// Check for forgetting only if the candidate is better.
	if l.opened && l.trial != nil && len(l.recalled) == 0 && l.settlementDue() {
		if gain, passes := l.wouldPass(); passes {
			return l.firstAnswers(gain)
		}
	}
	return answers{}
}

// wouldPass reports whether the candidate passes by the existing answers, and its gain by these.
func (l *Learner) wouldPass() (gain float64, passes bool) {
	list := l.judgedBy()
	now, all := knownEvidence(l.serving, l.trial, list), l.evidenceWith(list)
	return all.gain(), l.passes(&all, &now)
}

// knownEvidence compares weights with the serving ones by samples that both have answered.
func knownEvidence(serving, with *judge, list []Sample) (now evidence) {
	for _, s := range list {
		serves, _ := serving.isRight(s)
		judged, _ := with.isRight(s)
		now.add([]bool{serves}, []bool{judged})

		servesSure, _ := serving.isSure(s)
		judgedSure, _ := with.isSure(s)
		now.addSure(float64(judgedSure) - float64(servesSure))
	}
	return now
}

// previousJudgedBy returns those of a judgement's samples that judge the previous version, too: the first, and the others
// if it is better by these. They are answered with the serving weights first.
func (l *Learner) previousJudgedBy(list []Sample) []Sample {
	first := list[:min(judgedMin, len(list))]
	if len(l.serving.unjudged(first, 1))+len(l.previous.unjudged(first, 1)) > 0 {
		return first
	}
	all := l.regret
	if all.follow(knownEvidence(l.serving, l.previous, first)); all.gain() <= 0 {
		return first
	}
	return list
}

// trialAnswers returns the answers that the judgement under way needs.
func (l *Learner) trialAnswers() (needs []answers) {
	did := &l.counts.Answered
	if len(l.recalled) > 0 {
		list := l.recalledNext()
		return []answers{{of: l.serving, list: list, count: &did.Serving}, {of: l.trial, list: list, count: &did.Known}}
	}

	list := l.judgedBy()
	needs = []answers{{of: l.serving, list: list, count: &did.Serving}, {of: l.trial, list: list, count: &did.Candidates}}
	if l.previous != nil {
		needs = append(needs, answers{of: l.previous, list: l.previousJudgedBy(list), count: &did.Previous})
	}
	return needs
}

// BeginLook makes steps compute the answers of a due look, so that Look ends it without delay.
func (l *Learner) BeginLook(now time.Duration) {
	l.now = now
	l.noteWatched()
	l.looking = l.looking || l.LookDue(now)
}

// LookReady reports whether Look has something to end at once: a look, or an alarm.
func (l *Learner) LookReady() bool {
	if l.alarmed || !l.looking {
		return l.alarmed
	}
	few := len(l.samples.window) < 2
	return few || l.test != nil && l.test.Advance(0)
}

// prepare does one brief step's work for the look or judgement under way, and reports whether there was any.
func (l *Learner) prepare(r *Report) (did bool, err error) {
	if next := l.nextAnswers(); next.of != nil {
		r.Work, r.Inputs = Judging, len(next.list)
		*next.count += len(next.list)
		return true, next.of.seeSome(next.list)
	}

	// The test of a look begins when all its answers exist.
	if !l.looking || l.LookReady() {
		return l.compareSome(r)
	}
	r.Work = Judging
	if l.test == nil {
		_, err = l.beginTest()
	} else {
		l.test.Advance(lookUnits)
	}
	return true, err
}

// Idle reports whether Step would do nothing until more samples come, or Settle or Look is called.
func (l *Learner) Idle() bool {
	if l.labels() {
		return false
	}
	if l.options.Brief && (l.nextAnswers().of != nil || l.comparing != nil || l.looking && !l.LookReady()) {
		return false
	}

	return l.settlementDue() || !l.trains()
}

// LookDue reports whether a Look at that time would compare.
func (l *Learner) LookDue(now time.Duration) bool { return now >= l.began+l.lookAfter(l.looked+1) }
