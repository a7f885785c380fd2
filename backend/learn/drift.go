package learn

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
)

// windowMax is the most drift samples of a period that are kept.
const windowMax = 2 * driftMax

// Look compares the period so far with the data before it, when a look is due, and sets the learner to work if that has
// drifted. The last look is at the period's end and each earlier one in half of the time, so that a great change is seen
// at once and a small one with many samples. They share the period's level: a period without drift raises an alarm no more
// often than Options.Level says. inputs is how many samples were answered for it: 0 if no look was due, or there were too few
// samples for one.
func (l *Learner) Look(now time.Duration) (report plan.DriftReport, inputs int, err error) {
	l.now = now
	if !l.LookDue(now) {
		return report, 0, nil
	}

	// Looks that were missed are not made up for: the window has their samples.
	for l.looked < l.options.Looks && l.LookDue(now) {
		l.looked++
	}
	last := l.looked >= l.options.Looks

	// Two samples are the least that a comparison takes.
	s := l.samples
	if len(s.window) >= 2 {
		if report, inputs, err = l.compareWindow(); err != nil {
			return report, 0, err
		}
		l.counts.Looks++
	}
	l.looking, l.test = false, nil
	if report.Drifted {
		l.noteDrift(report, now)
	}

	// The level is for one period: the next one has all of its looks, and an empty window.
	if last {
		l.began, l.looked = now, 0
		s.window, s.filling = nil, false
	}
	return report, inputs, nil
}

// lookAfter is how long after a period's start its n-th look is due.
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

// beginTest begins to test the period's samples.
func (l *Learner) beginTest() (answered int, err error) {
	// Both sides are answered by the weights that serve now: only the inputs may differ.
	s := l.samples
	old, n, err := l.serving.see(s.reference)
	if err != nil {
		return 0, err
	}
	recent, m, err := l.serving.see(l.lookedAt())
	if err != nil {
		return 0, err
	}
	l.test, err = plan.NewDriftTest(old.features, recent.features, countRight(old.right), countRight(recent.right), l.options.Level/float64(l.options.Looks))
	return n + m, err
}

// lookedAt are the period's latest samples.
func (l *Learner) lookedAt() []Sample {
	s := l.samples
	s.window = s.window[max(0, len(s.window)-windowMax):]
	return s.window
}

// noteDrift makes the present the reference, and wakes the learner.
func (l *Learner) noteDrift(report plan.DriftReport, now time.Duration) {
	l.counts.Drifts++
	l.drifts = append(l.drifts, now)

	l.impact, l.gains = max(report.ImpactHigh, 0), nil // few labels may show no loss where there is one

	// A judgement that has begun is by samples of before.
	l.closeTrial()

	// A rollback holds only until the world has changed again.
	l.learning, l.held = true, false
	l.best, l.sinceJudge, l.evidence = 0, 0, evidence{}
	l.samples.noteDrift()
	l.keepKnown()
}

// Drifts returns when drifts were detected.
func (l *Learner) Drifts() []time.Duration { return slices.Clone(l.drifts) }
