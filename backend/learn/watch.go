package learn

import (
	"time"

	"downbeat.dev/core/plan"
)

// A look waits for its time, and a loss in the middle of a period is diluted by the answers before it. So between looks
// an alarm watches the same samples one by one (plan.LossAlarm). Its answers are those that the next look needs anyway.

// watchBatch is the number of samples that a learner with long steps answers at a time.
const watchBatch = 32

// watches reports whether the alarm can watch: the serving weights have answered the reference, or what a look needs of
// it.
func (l *Learner) watches() bool {
	list := l.referredTo()
	return len(list) > 0 && len(l.serving.unanswered(list, 1)) == 0
}

// watchNext returns a batch of samples for the alarm that have no answer yet, if there are enough for one.
func (l *Learner) watchNext(batch int) []Sample {
	if !l.watches() || l.alarmed {
		return nil
	}

	if list := l.serving.unanswered(l.samples.unwatched, batch); len(list) == batch {
		return list
	}
	return nil
}

// noteWatched passes the existing answers to the alarm.
func (l *Learner) noteWatched() {
	s := l.samples
	if !l.watches() {
		l.resetAlarm()
		return
	}

	// While the reference grows there is nothing to watch, and more of it tells a loss better.
	if l.alarm == nil && len(s.unwatched) > 0 {
		l.alarm = plan.NewLossAlarm(l.serving.countKnown(s.reference), l.levelOfEach())
	}

	for len(s.unwatched) > 0 && !l.alarmed {
		right, known := l.serving.isRight(s.unwatched[0])
		if !known {
			return
		}
		s.unwatched = s.unwatched[1:]
		l.alarmed = l.alarm.Note(right)
	}
}

// answerWatched does both for a learner with long steps, and returns the number of answered samples.
func (l *Learner) answerWatched() (inputs int, err error) {
	if l.options.Brief {
		return 0, nil
	}

	for list := l.watchNext(watchBatch); list != nil; list = l.watchNext(watchBatch) {
		if err := l.serving.seeSome(list); err != nil {
			return inputs, err
		}
		inputs += len(list)
		l.counts.Answered.Watched += len(list)
	}

	l.noteWatched()
	return inputs, nil
}

// levelOfEach is the level of each look, and of the alarm: together they raise no more false alarms than
// Options.Level.
func (l *Learner) levelOfEach() float64 { return l.options.Level / float64(l.options.Looks+1) }

// noteAlarm starts learning from the samples since the loss.
func (l *Learner) noteAlarm(now time.Duration) plan.DriftReport {
	report, s := l.alarm.Report(), l.samples
	since := l.alarm.Since() + len(s.unwatched)
	s.window = s.window[max(0, len(s.window)-since):]
	l.noteDrift(report, now)
	return report
}

// resetAlarm begins to watch anew: other weights serve, or a period begins.
func (l *Learner) resetAlarm() {
	l.alarm, l.alarmed, l.samples.unwatched = nil, false, nil
}
