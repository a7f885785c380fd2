package learn

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Version is one published set of weights.
type Version struct {
	Number  int
	Weights []float32
	// ExitGaps are, for each early exit, the whole net's accuracy minus the exit's on the same samples, as last
	// judged: at most 1, below 0 if the exit is better.
	ExitGaps []float64

	evidence evidence // about its exits
}

const versionsKept = 4

// Rollback publishes the weights of an earlier version again, under a new number, and publishes nothing learnt until
// the next drift.
func (l *Learner) Rollback(version int) error {
	earlier, err := l.earlierVersion(version)
	if err != nil {
		return fmt.Errorf("roll back to version %d: %w", version, err)
	}
	if err := l.publish(earlier.Weights, evidence{exits: earlier.evidence.exits}); err != nil {
		return fmt.Errorf("roll back to version %d: %w", version, err)
	}

	// Do not learn and publish the same weights again.
	l.held, l.learning = true, false
	l.closeTrial()
	return l.restartCandidate()
}

// earlierVersion returns a version that can be put in force again: one of this learner's, or one of the store's from before
// its process was restarted.
func (l *Learner) earlierVersion(number int) (v Version, err error) {
	i := slices.IndexFunc(l.versions, func(v Version) bool { return v.Number == number })
	if i >= 0 {
		return l.versions[i], nil
	}
	if l.options.Stored == nil {
		return v, fmt.Errorf("only %v can be put in force again", l.numbers())
	}

	v.Number = number
	if v.Weights, err = l.options.Stored(number); err != nil {
		return v, fmt.Errorf("besides %v: %w", l.numbers(), err)
	}
	if !isFinite(v.Weights) {
		return v, errors.New("its weights are not all finite")
	}

	// What its exits are worth is known only from its answers, as for the version with which the learner began.
	j, err := newJudge(l.options, number, v.Weights)
	if err != nil {
		return v, err
	}
	defer j.close()
	first, err := j.answerSamples(l.samples.judgesOld)
	v.evidence.addExits(first)
	return v, err
}

func (l *Learner) numbers() (all []int) {
	for _, v := range l.versions {
		all = append(all, v.Number)
	}
	return all
}

// publish makes a copy of weights the serving version, under the next number. better is the evidence that they are
// better than the serving ones, and about their exits. A number is used once, so that a half-failed publication is not
// mistaken for a later one.
func (l *Learner) publish(weights []float32, better evidence) error {
	l.numbered++

	// The number is used even if publishing fails: a backend may have seen it.
	next := Version{l.numbered, slices.Clone(weights), better.exitGaps(), better}

	// Do everything that may fail before replacing the serving weights.
	fresh, err := newJudge(l.options, next.Number, next.Weights)
	if err != nil {
		return err
	}
	if l.options.Publish != nil {
		if err := l.options.Publish(next); err != nil {
			fresh.close()
			return fmt.Errorf("version %d is not published, version %d serves on: %w", next.Number, l.Version(), err)
		}
	}

	// A look under way compares features of the old weights, so drop it. The alarm waits for answers of the new ones.
	l.test = nil
	l.pauseAlarm()

	l.dropPrevious()
	if l.beginning == nil {
		l.beginning = l.serving
	}
	l.comparing = nil
	// Keep judging the replaced version.
	l.previous, l.regret = l.serving, evidence{}
	l.against = better.reversed()
	l.serving = fresh
	l.evidence = evidence{}
	l.versions = append(l.versions, next)
	l.versions = l.versions[max(0, len(l.versions)-versionsKept):]
	l.counts.Published++
	return nil
}

// dropPrevious ends the judging of the version before the serving one.
func (l *Learner) dropPrevious() {
	if l.previous != nil && l.previous != l.beginning {
		l.previous.close()
	}
	l.previous = nil
}

// restartCandidate sets the candidate to the serving weights.
func (l *Learner) restartCandidate() error {
	l.sinceJudge = 0
	l.evidence, l.averaged = evidence{}, 0

	// Reset the trainer as well: the mean must not follow discarded weights.
	copy(l.candidate, l.Weights())
	l.stepping, l.partly = false, 0
	return l.trainer.SetWeights(l.Weights())
}

func isFinite(weights []float32) bool {
	return !slices.ContainsFunc(weights, func(w float32) bool { return math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) })
}
