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
		l.pauseAlarm()
		return
	}

	// While the reference grows there is nothing to watch, and more of it tells a loss better.
	if len(s.unwatched) > 0 {
		l.openAlarm()
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

// openAlarm lets the alarm watch the serving weights from now on.
func (l *Learner) openAlarm() {
	switch {
	case l.alarm == nil:
		l.alarm = plan.NewLossAlarm(l.serving.countKnown(l.samples.reference), l.levelOfEach())
	case l.watched != l.Version():
		l.alarm.Follow(l.serving.countKnown(l.samples.reference))
	}
	l.watched = l.Version()
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

// resetAlarm begins to watch anew: a period begins, or there is another reference.
func (l *Learner) resetAlarm() {
	l.pauseAlarm()
	l.alarm = nil
}

// pauseAlarm leaves samples out until the serving weights have answered the reference. The alarm's level is that of a
// period, however often other weights serve in it: so it goes on from what it has noted.
func (l *Learner) pauseAlarm() { l.alarmed, l.samples.unwatched = false, nil }
