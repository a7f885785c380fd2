package learn

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
)

// windowMax is the most drift samples of a period that are kept.
const windowMax = 2 * driftMax

// Look compares the period so far with the data before it, when a look is due, and sets the learner to work if that has
// drifted. Looks are spread evenly over a period and share its level, so that a period without drift raises an alarm no
// more often than Options.Level says. looked is false if none was due, or there were too few samples.
func (l *Learner) Look(now time.Duration) (report plan.DriftReport, looked bool, err error) {
	every := l.options.Period / time.Duration(l.options.Looks)
	if now < l.began+every*time.Duration(l.looked+1) {
		return report, false, nil
	}
	l.looked = int((now - l.began) / every)

	// Looks that were missed are not made up for: the window has their samples.
	last := l.looked >= l.options.Looks

	// Two samples are the least that a comparison takes.
	s := l.samples
	if len(s.window) >= 2 {
		report, err = l.compareWindow()
		if err != nil {
			return report, false, err
		}
		looked = true
		l.counts.Looks++
	}
	if report.Drifted {
		l.noteDrift(report, now)
	}
	l.wake()

	// The level is for one period: the next one has all of its looks, and an empty window.
	if last {
		l.began, l.looked = now, 0
		s.window, s.filling = nil, false
	}
	return report, looked, nil
}

// compareWindow tests the period's samples against the reference, both as the serving weights see them.
func (l *Learner) compareWindow() (plan.DriftReport, error) {
	s := l.samples
	s.window = s.window[max(0, len(s.window)-windowMax):]

	// Both sides are answered by the weights that serve now: only the inputs may differ.
	before, old, err := l.serving.answerSamples(s.reference)
	if err != nil {
		return plan.DriftReport{}, err
	}
	now, recent, err := l.serving.answerSamples(s.window)
	if err != nil {
		return plan.DriftReport{}, err
	}
	return plan.Drift(old, recent, countRight(before), countRight(now), l.options.Level/float64(l.options.Looks))
}

// noteDrift makes the present the reference, and wakes the learner.
func (l *Learner) noteDrift(report plan.DriftReport, now time.Duration) {
	l.counts.Drifts++
	l.drifts = append(l.drifts, now)

	l.impact, l.gains = max(report.ImpactHigh, 0), nil // few labels may show no loss where there is one

	// A rollback holds only until the world has changed again.
	l.learning, l.held = true, false
	l.flat, l.best, l.sinceJudge, l.resting = 0, 0, 0, 0
	l.samples.noteDrift()
}

// wake sets a learner that rests to work again once there is twice as much to learn from since the last drift.
func (l *Learner) wake() {
	// With twice the samples a learner that had gained nothing may gain something.
	if n := len(l.samples.recent.samples); l.resting > 0 && n >= 2*l.resting {
		l.learning, l.resting, l.flat = true, 0, 0
	}
}

// Drifts returns when drifts were detected.
func (l *Learner) Drifts() []time.Duration { return slices.Clone(l.drifts) }
