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

// Learner trains one model further. Call Close when done.
type Learner struct {
	options  Options
	trainer  *train.Trainer
	serving  *judge
	versions []Version // that can be put in force again, the serving one last
	numbered int       // the highest number that was given to a version, published or not
	start    Version   // that it began with
	first    []bool    // what the first weights answered of the old held-out samples
	samples  *samples

	offered int
	waiting [][]byte // inputs without a label, the oldest first

	now        time.Duration // when Look or BeginLook was called last
	teachFrom  time.Duration // when the teacher may be asked again
	teachPause time.Duration // since it failed last; 0: it has answered since

	// candidate is the mean of the trainer's weights over the last steps: single steps jump about.
	candidate  []float32
	averaged   int      // steps in that mean
	evidence   evidence // for the candidate
	beginning  *judge   // the weights that the learner began with; nil: they serve
	comparing  *comparison
	compared   Compared  // the latest that has ended and was not taken
	previous   *judge    // the version before the serving one; nil: none to go back to
	regret     evidence  // for that version
	learning   bool      // from the first drift on, but for the time after a rollback
	held       bool      // after a rollback nothing is published until the next drift
	sinceJudge int       // steps since the candidate was last judged
	best       float64   // gain over the serving weights of the candidates since the last drift or publication
	gains      []float64 // of a step, by judgement
	impact     float64
	took       time.Duration // a training step

	trial   *judge          // of the weights that a judgement is about, from its beginning to its end
	opened  bool            // the judgement that is due has begun
	looking bool            // a look is due
	test    *plan.DriftTest // of that look, once all its samples are answered

	known          []Version // that served when a drift came, the first version first
	recalled       []Version // of those, to be tried again since the last drift
	bestRecalled   []float32 // of those tried
	recallErrors   float64   // by which it is better than what serves
	recallEvidence evidence  // for it

	began  time.Duration // of the period
	looked int           // looks since then
	drifts []time.Duration
	counts Counts
}

// Version is one published set of weights.
type Version struct {
	Number  int
	Weights []float32
	// ExitGaps are by how much fewer of the same samples each early exit answers rightly than the whole net, as judged last:
	// 0 to 1, below 0 where the exit is better.
	ExitGaps []float64

	evidence evidence // of its exits
}

// Counts is what a learner has done since its start.
type Counts struct {
	Sampled, Labelled, Dropped int // inputs: kept, given a class, and those that waited for one too long
	Steps                      int // of training
	Judged, Published          int // candidates
	Recalled, Reverted         int // published versions that had served before: good again, and better after all
	Worse                      int // candidates thrown away because they had become worse than what serves
	NotFinite                  int // candidates thrown away because of a loss or weights that are no numbers
	Unpublished                int // candidates that were better, but could not be published
	Looks, Drifts              int
	TeacherFailed              int // labelling steps whose inputs got no class
}

const versionsKept = 4

// New makes a learner. now is on the clock of all later calls. A model that cannot be trained is refused with the reason:
// it serves on as it is.
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

	l := &Learner{options: o, samples: newSamples(o.Initial, o.Seed), began: now, now: now, took: o.StepTime}
	l.options.Initial = nil // their memory is the samples' now
	weights := slices.Clone(o.Weights)

	// Trainer and judge hold C memory: an error frees what was made before it.
	var err error
	l.trainer, err = train.New(o.Net, train.Options{Batch: o.Batch, Weights: weights, Library: o.Library})
	if err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	if l.serving, err = newJudge(o, weights); err != nil {
		l.trainer.Close()
		return nil, fmt.Errorf("learner: %w", err)
	}
	l.candidate = slices.Clone(weights)

	// What the first weights answer never changes, so that it is computed once.
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

// Offer is told of an input that was answered, and keeps one in Options.Every of them to be labelled by Step. The input
// is copied. It reports whether it was kept.
func (l *Learner) Offer(input []byte) (kept bool, err error) {
	if err := l.options.checkSample(Sample{Input: input}); err != nil {
		return false, err
	}

	// Labels cost GPU time: only every so many inputs get one.
	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	return l.offerSampled(input)
}

// offerSampled is Offer for an input that is one in Options.Every already.
func (l *Learner) offerSampled(input []byte) (kept bool, err error) {
	if err := l.options.checkSample(Sample{Input: input}); err != nil || l.options.Teach == nil {
		return false, err
	}

	// Of inputs that wait longest the label would say least of the present.
	if len(l.waiting) == waitMax {
		l.waiting = l.waiting[1:]
		l.counts.Dropped++
	}
	l.waiting = append(l.waiting, slices.Clone(input))
	l.counts.Sampled++
	return true, nil
}

// OfferLabelled is Offer for inputs whose class is known. The input is copied.
func (l *Learner) OfferLabelled(s Sample) (kept bool, err error) {
	if err := l.options.checkSample(s); err != nil {
		return false, err
	}

	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	l.samples.add(Sample{slices.Clone(s.Input), s.Class})
	l.counts.Sampled++
	l.counts.Labelled++
	return true, nil
}

// Version returns the number of the serving weights.
func (l *Learner) Version() int { return l.current().Number }

// Weights returns the serving weights: to be left unchanged.
func (l *Learner) Weights() []float32 { return l.current().Weights }

// ExitGaps returns those of the serving version: to be left unchanged.
func (l *Learner) ExitGaps() []float64 { return l.current().ExitGaps }

func (l *Learner) current() Version { return l.versions[len(l.versions)-1] }

// Counts returns what has been done so far.
func (l *Learner) Counts() Counts { return l.counts }

// Worth is what core/plan must know to say what a second of GPU time is worth to this learner. rate is the requests/s
// that the model answers. A learner that has seen no drift is worth nothing; later its worth follows what its steps gain.
func (l *Learner) Worth(rate float64) plan.Learner {
	p := plan.Learner{Rate: rate, Step: l.took, Drifts: slices.Clone(l.drifts)}

	// A learner that gains nothing is worth next to nothing, and still uses time that nobody else wants: a small gain is
	// one, too.
	if l.learning {
		p.Impact, p.Gains = l.impact, slices.Clone(l.gains)
		p.Step = max(p.Step, time.Microsecond) // before the first step its length is not known
	}
	return p
}

// Rollback publishes the weights of an earlier version again, under a number of their own, and holds what is learnt back
// until the next drift.
func (l *Learner) Rollback(version int) error {
	i := slices.IndexFunc(l.versions, func(v Version) bool { return v.Number == version })
	if i < 0 {
		return fmt.Errorf("roll back to version %d: only %v can be put in force again", version, l.numbers())
	}
	if err := l.publish(l.versions[i].Weights, l.versions[i].evidence); err != nil {
		return fmt.Errorf("roll back to version %d: %w", version, err)
	}

	// What was rolled back must not be learnt and published again at once.
	l.held, l.learning = true, false
	l.closeTrial()
	return l.restartCandidate()
}

func (l *Learner) numbers() (all []int) {
	for _, v := range l.versions {
		all = append(all, v.Number)
	}
	return all
}

// publish makes a copy of weights the serving ones, under the next number; exits is how their exits were judged. A number is
// given once, so that a publication that has failed half way is not mistaken for a later one.
func (l *Learner) publish(weights []float32, exits evidence) error {
	l.numbered++

	// The number is used up even if publishing fails: a backend may have seen it.
	next := Version{l.numbered, slices.Clone(weights), exits.exitGaps(), exits}

	// Everything that may fail comes before the serving weights are let go.
	fresh, err := newJudge(l.options, next.Weights)
	if err != nil {
		return err
	}
	if l.options.Publish != nil {
		if err := l.options.Publish(next); err != nil {
			fresh.close()
			return fmt.Errorf("version %d is not published, version %d serves on: %w", next.Number, l.Version(), err)
		}
	}

	// A look that has begun compares what other weights see.
	l.test = nil

	// What served goes on being judged, unless it is what has just come back.
	if l.previous != nil && l.previous != l.beginning {
		l.previous.close()
	}
	if l.beginning == nil {
		l.beginning = l.serving
	}
	l.comparing = nil
	l.previous, l.regret = l.serving, evidence{}
	l.serving = fresh
	l.evidence, l.best = evidence{}, 0
	l.versions = append(l.versions, next)
	l.versions = l.versions[max(0, len(l.versions)-versionsKept):]
	l.counts.Published++
	return nil
}

// restartCandidate makes the candidate the serving weights again.
func (l *Learner) restartCandidate() error {
	l.sinceJudge, l.gains = 0, nil
	l.evidence, l.averaged = evidence{}, 0

	// The trainer starts from there, too: the mean must not follow weights that were thrown away.
	copy(l.candidate, l.Weights())
	return l.trainer.SetWeights(l.Weights())
}

// Close frees everything.
func (l *Learner) Close() error {
	l.serving.close()
	l.closeTrial()
	if l.previous != nil && l.previous != l.beginning {
		l.previous.close()
	}
	if l.beginning != nil {
		l.beginning.close()
	}
	return l.trainer.Close()
}

func isFinite(weights []float32) bool {
	return !slices.ContainsFunc(weights, func(w float32) bool { return math.IsNaN(float64(w)) || math.IsInf(float64(w), 0) })
}
