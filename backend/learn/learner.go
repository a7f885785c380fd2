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
	averaged   int      // steps since that mean began; after a drift 2·meanLeast at most
	rate       float64  // learning rate: Options.Rate, halved with each candidate discarded since the last drift
	evidence   evidence // for the candidate
	beginning  *judge   // the weights with which the learner began; nil: they serve
	comparing  []Sample // by which the serving weights are compared with these; nil: no comparison is under way
	compared   Compared // the latest ended comparison that was not taken
	previous   *judge   // the version before the serving one; nil: none
	regret     evidence // for that version, since it was replaced
	against    evidence // for it, with that by which it was replaced
	learning   bool     // from the first drift on, except after a rollback
	held       bool     // after a rollback nothing is published until the next drift
	sinceJudge int      // steps since the candidate was last judged
	gain       plan.TrainingGain
	took       time.Duration // duration of a training step

	trial   *judge          // of the weights under judgement, while it lasts
	opened  bool            // the due judgement has begun
	looking bool            // a look is due
	test    *plan.DriftTest // the test of that look, once all its samples are answered
	alarm   *plan.LossAlarm // between looks; nil: not before the reference is answered
	alarmed bool            // it was raised
	watched int             // version whose answers it notes

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

// Version returns the number of the serving weights.
func (l *Learner) Version() int { return l.current().Number }

// Weights returns the serving weights, which must not be changed.
func (l *Learner) Weights() []float32 { return l.current().Weights }

// ExitGaps returns those of the serving version, which must not be changed.
func (l *Learner) ExitGaps() []float64 { return l.current().ExitGaps }

func (l *Learner) current() Version { return l.versions[len(l.versions)-1] }

// Counts returns the counts so far.
func (l *Learner) Counts() Counts { return l.counts }

// Worth returns the value of a second of GPU time for this learner, in answers that become right, by the gain that is
// expected of its steps. rate is the rate of the model's answers, in requests/s. A due look is worth more than any step:
// what a drift costs is not known before it.
func (l *Learner) Worth(rate float64) float64 {
	if l.looking && !l.LookReady() {
		return math.Inf(1)
	}
	worth := plan.Learner{Rate: rate, Gain: l.gain.OfStep(), Step: l.took, Drifts: l.drifts}
	if worth.Step == 0 {
		worth.Step = stepAssumed // before the first step its length is unknown
	}
	return plan.TrainingValue(&worth, l.now, l.options.Period)
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
