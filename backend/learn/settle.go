package learn

import "time"

// Settling tells whether a judgement is due, which Settle makes.
func (l *Learner) Settling() bool {
	due := l.learning && l.canTrain() && l.sinceJudge >= judgeEvery && len(l.samples.fresh) >= judgedMin
	return len(l.recalled) > 0 || due
}

// Settle makes the judgement that is due, if one is. It may take as long as answering some hundred samples and
// Options.Publish do.
func (l *Learner) Settle() (r Report, err error) {
	if !l.Settling() {
		return r, nil
	}

	// What was good before a drift is tried before what was trained since.
	began := time.Now()
	r.Work = Judging
	if len(l.recalled) > 0 {
		err = l.judgeRecalled(&r)
	} else {
		err = l.judgeCandidate(&r)
	}
	r.Took = time.Since(began)
	return r, err
}

// Idle tells whether Step would do nothing until more samples come, or Settle is called.
func (l *Learner) Idle() bool {
	trains := l.learning && l.canTrain() && l.sinceJudge < unjudged
	return len(l.waiting) < l.labelled() && (l.Settling() || !trains)
}

// LookDue tells whether a Look at that time would compare.
func (l *Learner) LookDue(now time.Duration) bool { return now >= l.began+l.lookAfter(l.looked+1) }
