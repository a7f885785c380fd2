package learn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"downbeat.dev/backend/train"
	"downbeat.dev/core/plan"
)

// Learner trains one model further while it serves. Call Close when done.
type Learner struct {
	options  Options
	trainer  train.Stepper
	stepping bool          // a training step has begun and not ended
	partly   time.Duration // its duration so far
	serving  *judge
	versions []Version // versions to roll back to, the serving one last
	numbered int       // the highest number given to a version, published or not
	start    Version   // the version with which it began
	first    []bool    // answers of the first weights to the held-out samples of the first data
	samples  *samples

	offered int
	waiting []Sample // without a class, the oldest first

	now        time.Duration // time of the latest Look or BeginLook
	teachFrom  time.Duration // when the teacher may be asked again
	teachPause time.Duration // after its latest failures; 0: its latest answer was good

	// candidate is the mean of the trainer's weights over the last steps, since the weights of single steps
	// fluctuate.
	candidate  []float32
	averaged   int       // steps since that mean began; after a drift 2·meanLeast at most
	rate       float64   // learning rate: Options.Rate, halved with each candidate discarded since the last drift
	evidence   evidence  // for the candidate
	beginning  *judge    // the weights with which the learner began; nil: they serve
	comparing  []Sample  // by which the serving weights are compared with these; nil: no comparison is under way
	compared   Compared  // the latest ended comparison that was not taken
	previous   *judge    // the version before the serving one; nil: none
	regret     evidence  // for that version, since it was replaced
	against    evidence  // for it, with that by which it was replaced
	learning   bool      // from the first drift on, except after a rollback
	held       bool      // after a rollback nothing is published until the next drift
	sinceJudge int       // steps since the candidate was last judged
	best       float64   // highest gain of a candidate over the serving weights since the last drift or publication
	gains      []float64 // per step, by judgement
	impact     float64
	took       time.Duration // duration of a training step

	trial   *judge          // of the weights under judgement, while it lasts
	opened  bool            // the due judgement has begun
	looking bool            // a look is due
	test    *plan.DriftTest // the test of that look, once all its samples are answered
	alarm   *plan.LossAlarm // between looks; nil: not before the reference is answered
	alarmed bool            // it was raised

	known          []Version // versions that served when a drift came, the first version first
	recalled       []Version // known versions still to be tried since the last drift
	bestRecalled   []float32 // the best of those tried
	recallErrors   float64   // its gain over the serving weights, in standard errors
	recallEvidence evidence  // for it

	began  time.Duration // start of the period
	looked int           // looks since then
	drifts []time.Duration
	counts Counts
}

// Version is one published set of weights.
type Version struct {
	Number  int
	Weights []float32
	// ExitGaps are, for each early exit, the whole net's accuracy minus the exit's on the same samples, as last
	// judged: at most 1, below 0 if the exit is better.
	ExitGaps []float64

	evidence evidence // about its exits
}

// Counts are a learner's counts since its start.
type Counts struct {
	Sampled, Labelled, Dropped int // inputs: kept, labelled, and dropped after waiting too long
	Served                     int // labelled ones that the serving version had answered
	Steps                      int // of training
	Stopped                    int // how often a training step stopped between two layers
	Judged, Published          int // candidates
	Recalled, Reverted         int // earlier versions published again: after a drift, and because they proved better than their successor
	Worse                      int // discarded candidates that were worse than the serving weights
	NotFinite                  int // discarded candidates with a loss or weights that are not finite
	Unpublished                int // better candidates that could not be published
	Looks, Drifts              int
	TeacherFailed              int // labelling steps without labels
	Answered                   Answered
}

// Answered counts the samples that a learner's weights have answered, by purpose.
type Answered struct {
	Watched           int // for the alarm between looks
	Reference, Window int // for looks
	Serving           int // by the serving weights, to judge others
	Candidates        int
	Previous          int // by the version before
	Known             int // by known versions, after a drift
	First             int // samples of the first data, by candidates
}

const versionsKept = 4

// New creates a learner. now is on the clock of all later calls. It returns an error for a model that cannot be
// trained; the model then serves unchanged.
func New(o Options, now time.Duration) (*Learner, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	for i, s := range o.Initial {
		if err := o.checkSample(s); err != nil {
			return nil, fmt.Errorf("learner: initial sample %d: %w", i, err)
		}
	}
	if !isFinite(o.Weights) {
		return nil, fmt.Errorf("learner: net %s: the weights are not all finite", o.Net.Name)
	}

	l := &Learner{options: o, samples: newSamples(o.Initial, o.Seed), began: now, now: now, took: o.StepTime, rate: o.Rate}
	l.options.Initial = nil // their memory belongs to the samples now
	weights := slices.Clone(o.Weights)

	// Trainer and judge hold C memory, so free what was created before an error.
	var err error
	l.trainer, err = o.Trainer(o.Net, train.Options{Batch: o.Batch, Weights: weights, Library: o.Library})
	if err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	if l.serving, err = newJudge(o, o.Version, weights); err != nil {
		l.trainer.Close()
		return nil, fmt.Errorf("learner: %w", err)
	}
	l.candidate = slices.Clone(weights)

	// The first weights' answers never change, so compute them once.
	first, err := l.serving.answerSamples(l.samples.judgesOld)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("learner: %w", err), l.Close())
	}
	l.first = first.right
	var e evidence
	e.addExits(first)
	l.versions, l.numbered = []Version{{o.Version, weights, e.exitGaps(), e}}, o.Version
	l.known, l.start = slices.Clone(l.versions), l.versions[0]
	return l, nil
}

// Offer passes an answered input. It keeps one in Options.Every, to be labelled by Step, and reports whether it kept
// this one. It copies the input.
func (l *Learner) Offer(input []byte) (kept bool, err error) {
	if err := l.options.checkSample(Sample{Input: input}); err != nil {
		return false, err
	}

	// Labels cost GPU time, so label only one input in Every.
	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	return l.offerSampled(Sample{Input: input})
}

// offerSampled is Offer for an input that has already been chosen as one in Options.Every.
func (l *Learner) offerSampled(s Sample) (kept bool, err error) {
	if err := l.options.checkSample(s); err != nil || l.options.Teach == nil {
		return false, err
	}

	// Drop the oldest input: its label would say least about the present.
	if len(l.waiting) == waitMax {
		l.waiting = l.waiting[1:]
		l.counts.Dropped++
	}
	s.Input = slices.Clone(s.Input)
	l.waiting = append(l.waiting, s)
	l.counts.Sampled++
	return true, nil
}

// OfferLabelled is Offer for an input whose class is known. It copies the input.
func (l *Learner) OfferLabelled(s Sample) (kept bool, err error) {
	if err := l.options.checkSample(s); err != nil {
		return false, err
	}

	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	s.Input = slices.Clone(s.Input)
	l.counts.Sampled++
	l.addLabelled(s)
	return true, nil
}

// addLabelled adds a sample to the present.
func (l *Learner) addLabelled(s Sample) {
	l.samples.add(s)
	l.counts.Labelled++
	if s.Served.Version == l.Version() {
		l.counts.Served++
	}
}

// Version returns the number of the serving weights.
func (l *Learner) Version() int { return l.current().Number }

// Weights returns the serving weights, which must not be changed.
func (l *Learner) Weights() []float32 { return l.current().Weights }

// ExitGaps returns those of the serving version, which must not be changed.
func (l *Learner) ExitGaps() []float64 { return l.current().ExitGaps }

func (l *Learner) current() Version { return l.versions[len(l.versions)-1] }

// Counts returns the counts so far.
func (l *Learner) Counts() Counts { return l.counts }

// Worth returns the data from which core/plan computes the value of a second of GPU time for this learner. rate is
// the rate of the model's answers, in requests/s. Before the first drift the learner is worth nothing; later its
// worth follows the gain of its steps.
func (l *Learner) Worth(rate float64) plan.Learner {
	p := plan.Learner{Rate: rate, Step: l.took, Drifts: slices.Clone(l.drifts)}

	// A learner without gains is worth almost nothing, but uses time that no one else wants: a small gain is better
	// than none.
	if l.learning {
		p.Impact, p.Gains = l.impact, slices.Clone(l.gains)
		p.Step = max(p.Step, time.Microsecond) // before the first step its length is unknown
	}
	return p
}

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

	// A look under way compares features of the old weights, so drop it. So does the alarm with their answers.
	l.test = nil
	l.resetAlarm()

	l.dropPrevious()
	if l.beginning == nil {
		l.beginning = l.serving
	}
	l.comparing = nil
	// Keep judging the replaced version.
	l.previous, l.regret = l.serving, evidence{}
	l.against = better.reversed()
	l.serving = fresh
	l.evidence, l.best = evidence{}, 0
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
	l.sinceJudge, l.gains = 0, nil
	l.evidence, l.averaged = evidence{}, 0

	// Reset the trainer as well: the mean must not follow discarded weights.
	copy(l.candidate, l.Weights())
	l.stepping, l.partly = false, 0
	return l.trainer.SetWeights(l.Weights())
}

// Close frees all memory.
func (l *Learner) Close() error {
	l.serving.close()
	l.closeTrial()
	l.dropPrevious()
	if l.beginning != nil {
		l.beginning.close()
	}
	return l.trainer.Close()
}

func isFinite(weights []float32) bool {
	return !slices.ContainsFunc(weights, func(w float32) bool { return math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) })
}
