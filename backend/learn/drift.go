package learn

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
)

// Look compares the period so far with the data before it, if a look is due, and starts learning if the data has
// drifted. The last look is at the period's end, and each earlier one at half the time of the next, so that a large
// change is detected early and a small one with many samples. Between looks an alarm watches for a sudden loss. The
// looks and the alarm share the period's level: a period without drift raises an alarm no more often than
// Options.Level. inputs is the number of samples answered for the look and the alarm: 0 if no look was due or there
// were too few samples.
func (l *Learner) Look(now time.Duration) (report plan.DriftReport, inputs int, err error) {
	l.now = now
	if inputs, err = l.answerWatched(); err != nil {
		return report, inputs, err
	}
	if l.alarmed {
		return l.noteAlarm(now), max(1, inputs), nil
	}
	if !l.LookDue(now) {
		return report, inputs, nil
	}

	// Do not repeat missed looks: the window has their samples.
	for l.looked < l.options.Looks && l.LookDue(now) {
		l.looked++
	}
	last := l.looked >= l.options.Looks

	// A comparison needs at least two samples.
	s := l.samples
	if len(s.window) >= 2 {
		var more int
		if report, more, err = l.compareWindow(); err != nil {
			return report, inputs, err
		}
		inputs += more
		l.counts.Looks++
	}
	l.looking, l.test = false, nil
	if report.Drifted {
		if err := l.cutWindow(); err != nil {
			return report, inputs, err
		}
		l.noteDrift(report, now)
	}

	// The level is per period: the next period has all of its looks and an empty window.
	if last {
		l.began, l.looked = now, 0
		s.endPeriod()
		l.resetAlarm()
	}
	l.serving.forgetMany()
	return report, inputs, nil
}

// lookAfter returns the time of a period's n-th look, from the period's start.
func (l *Learner) lookAfter(n int) time.Duration { return l.options.Period >> (l.options.Looks - n) }

// compareWindow tests the period's samples against the reference, both as the serving weights see them.
func (l *Learner) compareWindow() (report plan.DriftReport, inputs int, err error) {
	answered := 0
	if l.test == nil {
		if answered, err = l.beginTest(); err != nil {
			return report, 0, err
		}
	}
	for !l.test.Advance(lookUnits) {
	}
	return l.test.Report(), max(1, answered), nil
}

// beginTest begins the test of the period's samples.
func (l *Learner) beginTest() (answered int, err error) {
	// The serving weights answer both sides: only the inputs may differ.
	s := l.samples
	old, n, err := l.serving.see(l.referredTo())
	if err != nil {
		return 0, err
	}
	recent, m, err := l.serving.see(l.lookedAt())
	if err != nil {
		return 0, err
	}
	l.counts.Answered.Reference += n
	l.counts.Answered.Window += m
	l.test, err = plan.NewDriftTest(old.features, recent.features, l.serving.countKnown(s.reference), l.serving.countKnown(s.window), l.levelOfEach())
	return n + m, err
}

// cutWindow drops the samples of the window from before the drift: they are no part of the new reference.
func (l *Learner) cutWindow() error {
	s := l.samples
	old, _, err := l.serving.see(l.referredTo())
	if err != nil {
		return err
	}
	recent, _, err := l.serving.see(l.lookedAt())
	if err == nil {
		s.window = s.window[s.windowSpread()[plan.DriftBegan(old.features, recent.features)]:]
	}
	return err
}

// lookedAt returns the samples of the period whose features a look compares.
func (l *Learner) lookedAt() []Sample { return pick(l.samples.window, l.samples.windowSpread()) }

// referredTo returns those of the reference.
func (l *Learner) referredTo() []Sample {
	return pick(l.samples.reference, chooseEvenly(len(l.samples.reference), 0, driftMax))
}

// noteDrift makes the present data the reference and starts learning.
func (l *Learner) noteDrift(report plan.DriftReport, now time.Duration) {
	l.counts.Drifts++
	l.drifts = append(l.drifts, now)

	l.gain.NoteDrift(report.ImpactHigh) // the high bound: few labels may hide a loss

	// Close a judgement under way: its samples are from before the drift. So are those of a look under way.
	l.closeTrial()
	l.test = nil
	l.resetAlarm()

	// A rollback holds only until the next drift, and so does a rate that was lowered for the data before it.
	l.learning, l.held, l.rate = true, false, l.options.Rate
	l.sinceJudge, l.evidence = 0, evidence{}
	l.averaged = min(l.averaged, 2*meanLeast) // the steps before it were towards other data
	l.samples.noteDrift()
	l.keepKnown()
}

// Drifts returns the times of detected drifts.
func (l *Learner) Drifts() []time.Duration { return slices.Clone(l.drifts) }
