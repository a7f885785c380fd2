package learn

import (
	"slices"
	"time"
)

// Judgements and looks at drift take some hundred answers. A learner whose steps are brief gives them one batch at a time: Settle
// opens a judgement, steps give the answers that it needs, and Settle, or Look, which then finds every answer there, ends it.

// lookUnits is how much of a drift test one brief step does: about a millisecond.
const lookUnits = 32

// settlementDue tells whether a judgement is due.
func (l *Learner) settlementDue() bool {
	due := l.learning && l.canTrain() && l.sinceJudge >= judgeEvery && len(l.samples.fresh) >= judgedMin
	return len(l.recalled) > 0 || due
}

// Settling tells whether Settle has something to do: a judgement is to be opened, or has all its answers.
func (l *Learner) Settling() bool {
	if !l.settlementDue() {
		return false
	}
	return !l.options.Brief || !l.opened || l.nextAnswers().of == nil
}

// Settle opens the judgement that is due, if one is, and makes it once its answers are there; unless steps are brief, it gives
// them itself. Publishing may take as long as Options.Publish does.
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

	// What was good before a drift is tried before what was trained since.
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

// openTrial makes the judge of the weights that are to be judged, unless these are no numbers or serve already.
func (l *Learner) openTrial() (err error) {
	weights := l.candidate
	if len(l.recalled) > 0 {
		weights = l.recalled[0].Weights
	}

	l.opened = true
	if isFinite(weights) && !(len(l.recalled) > 0 && slices.Equal(weights, l.Weights())) {
		l.trial, err = newJudge(l.options, weights)
	}
	return err
}

func (l *Learner) closeTrial() {
	if l.trial != nil {
		l.trial.close()
	}
	l.trial, l.opened = nil, false
}

// judgedBy are the samples that judge a candidate: of many that came at once half judge the next ones.
func (l *Learner) judgedBy() []Sample {
	return l.samples.fresh[:max(judgedMin, len(l.samples.fresh)/2)]
}

// answers are samples that a judge is to answer next.
type answers struct {
	of   *judge // nil: all are there
	list []Sample
}

// nextAnswers returns a batch of the answers that the look or judgement which has begun still needs.
func (l *Learner) nextAnswers() answers {
	var needs []answers
	if l.looking && l.test == nil {
		needs = append(needs, answers{l.serving, l.samples.reference}, answers{l.serving, l.lookedAt()})
	}
	if l.opened && l.trial != nil && l.settlementDue() {
		needs = append(needs, l.trialAnswers()...)
	}

	for _, n := range needs {
		if list := n.of.unseen(n.list, n.of.batch); len(list) > 0 {
			return answers{n.of, list}
		}
	}

	// Whether the first data is forgotten is asked of a candidate that is better only.
	if l.opened && l.trial != nil && len(l.recalled) == 0 && l.settlementDue() && l.wouldPass() {
		if list := l.trial.unseen(l.samples.judgesOld, l.trial.batch); len(list) > 0 {
			return answers{l.trial, list}
		}
	}
	return answers{}
}

// wouldPass tells whether the candidate passes by the answers that are there.
func (l *Learner) wouldPass() bool {
	// Answers are kept by sample, so that asking again costs no execution.
	var now evidence
	for _, s := range l.judgedBy() {
		now.add(l.serving.seen[&s.Input[0]].right, l.trial.seen[&s.Input[0]].right)
	}
	all := l.evidence
	all.follow(now)
	return l.passes(&all, &now)
}

// trialAnswers are those that the judgement which has begun is made of.
func (l *Learner) trialAnswers() (needs []answers) {
	if len(l.recalled) > 0 {
		list := l.recalledBy()
		return []answers{{l.serving, list}, {l.trial, list}}
	}

	list := l.judgedBy()
	needs = []answers{{l.serving, list}, {l.trial, list}}
	if l.previous != nil {
		needs = append(needs, answers{l.previous, list})
	}
	return needs
}

// BeginLook has steps do what a look that is due takes, so that Look ends it without delay.
func (l *Learner) BeginLook(now time.Duration) {
	l.now = now
	l.looking = l.looking || l.LookDue(now)
}

// LookReady tells whether a look has begun, and Look would end it at once.
func (l *Learner) LookReady() bool {
	if !l.looking {
		return false
	}
	few := len(l.samples.window) < 2
	return few || l.test != nil && l.test.Advance(0)
}

// prepare does a brief step's worth of the look or judgement that has begun, and tells whether there was anything to do.
func (l *Learner) prepare(r *Report) (did bool, err error) {
	if next := l.nextAnswers(); next.of != nil {
		r.Work, r.Inputs = Judging, len(next.list)
		return true, next.of.seeSome(next.list)
	}

	// All answers of a look are there before its test begins.
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

// Idle tells whether Step would do nothing until more samples come, or Settle or Look is called.
func (l *Learner) Idle() bool {
	if l.labels() {
		return false
	}
	if l.options.Brief && (l.nextAnswers().of != nil || l.comparing != nil || l.looking && !l.LookReady()) {
		return false
	}

	return l.settlementDue() || !l.trains()
}

// LookDue tells whether a Look at that time would compare.
func (l *Learner) LookDue(now time.Duration) bool { return now >= l.began+l.lookAfter(l.looked+1) }
