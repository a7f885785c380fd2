package learn

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/train"
)

// Work is what a step did.
type Work uint8

// The sorts of work. None means that there is nothing to do until more samples come.
const (
	None Work = iota
	Labelling
	Training
	Judging
)

var workNames = [...]string{"none", "labelling", "training", "judging"}

// String returns the work's name.
func (w Work) String() string {
	if int(w) < len(workNames) {
		return workNames[w]
	}
	return fmt.Sprintf("work %d", uint8(w))
}

// Report is what a step did, and how long that took on the processor that ran it.
type Report struct {
	Work   Work
	Took   time.Duration
	Inputs int     // that were labelled, trained on, or answered to judge
	Loss   float32 // of a training step
	// Of a judgement: the shares of held-out samples of the present that the serving weights and the candidate answered
	// rightly, and whether the candidate serves from now on.
	Serving, Candidate float64
	Published          bool
	Discarded          error // why the candidate was thrown away, or could not be published
}

const (
	labelBatch = 16 // inputs of a labelling step
	judgeEvery = 20 // training steps
	judgedMin  = 96 // held-out samples of the present
	meanSteps  = 20 // that the candidate is the mean of
	flatMax    = 6  // judgements without a gain, after which the learner rests
	gainsKept  = 32
	// forgetMost is the accuracy on the first data that may be lost for accuracy on the present.
	forgetMost = 0.02
	// betterBy is the standard errors by which a candidate must be better. Candidates are judged again and again: with one
	// error a candidate that had learnt wrong labels passed by chance.
	betterBy = 2
)

// Step does the next unit of work. Its length is bounded: a batch of labels, one training step, or a judgement. An error
// means that the machine failed; what is wrong with the candidate is in the report, and the serving weights serve on.
func (l *Learner) Step() (r Report, err error) {
	began := time.Now()
	switch {
	// Labels come first: they are what the other work learns from.
	case len(l.waiting) >= labelBatch:
		r.Work, r.Inputs, err = Labelling, labelBatch, l.label()
	case !l.learning || len(l.samples.recent.samples) < l.options.Batch || len(l.samples.judges.samples) < judgedMin:
		return r, nil
	case l.sinceJudge >= judgeEvery:
		r.Work, err = Judging, l.judgeCandidate(&r)
	default:
		r.Work, err = Training, l.train(&r)
		defer func() { l.noteStepTime(r.Took) }()
	}
	r.Took = time.Since(began)
	return r, err
}

// noteStepTime keeps the mean length of a training step, unless the options state it.
func (l *Learner) noteStepTime(took time.Duration) {
	switch {
	case l.options.StepTime > 0:
	case l.took == 0:
		l.took = took
	default:
		l.took += (took - l.took) / 8
	}
}

// label asks the teacher for the classes of the inputs that wait longest.
func (l *Learner) label() error {
	// The inputs leave the queue whatever the teacher says: a teacher that fails must not block it.
	list := l.waiting[:labelBatch]
	l.waiting = l.waiting[labelBatch:]
	var images []byte
	for _, input := range list {
		images = append(images, input...)
	}

	classes, err := l.options.Teach(images, len(list))
	if err == nil && len(classes) != len(list) {
		err = fmt.Errorf("%d classes for %d inputs", len(classes), len(list))
	}
	if err != nil {
		l.counts.Dropped += len(list)
		return fmt.Errorf("teacher of %s: %w", l.options.Net.Name, err)
	}
	for i, class := range classes {
		s := Sample{list[i], class}
		if err := l.options.checkSample(s); err != nil {
			l.counts.Dropped++
			continue // a teacher with more classes than the student: such an input teaches nothing
		}
		l.samples.add(s)
		l.counts.Labelled++
	}
	return nil
}

// train runs one step of the training graph.
func (l *Learner) train(r *Report) error {
	var images []byte
	classes := int(l.options.Net.Head.(train.Classes).N)
	targets := make([]float32, l.options.Batch*classes)
	for i, s := range l.samples.drawBatch(l.options.Batch, l.options.Recent) {
		images = append(images, s.Input...)
		targets[i*classes+s.Class] = 1
	}

	r.Inputs = l.options.Batch
	loss, err := l.trainer.Step(images, targets, l.options.Rate)
	r.Loss = loss

	// Only NaN differs from itself: nothing of such a step may reach the candidate.
	if loss != loss {
		return l.discard(r, &l.counts.NotFinite, err)
	}
	if err != nil {
		return err
	}
	for i, w := range l.trainer.Weights() {
		l.candidate[i] += (w - l.candidate[i]) / meanSteps
	}
	l.counts.Steps++
	l.sinceJudge++
	return nil
}

// discard throws the candidate away. What made it worse is likely to do so again, so that the next one learns more
// slowly.
func (l *Learner) discard(r *Report, count *int, why error) error {
	*count++
	r.Discarded = why

	l.options.Rate /= 2
	return l.restartCandidate()
}

// errWorse is why a candidate is thrown away that answers less than what serves.
var errWorse = errors.New("the candidate has become worse than the serving weights")

// judgeCandidate compares the candidate with the serving weights on held-out samples, and publishes or discards it.
func (l *Learner) judgeCandidate(r *Report) error {
	l.counts.Judged++

	steps := l.sinceJudge
	l.sinceJudge = 0
	weights := l.candidate
	if !isFinite(weights) {
		return l.discard(r, &l.counts.NotFinite, errors.New("the candidate's weights are not all finite"))
	}

	candidate, err := newJudge(l.options, weights)
	if err != nil {
		return err
	}
	defer candidate.close()

	// All three are answered before anything is decided: an error leaves the candidate as it is.
	serves, _, err := l.serving.answerSamples(l.samples.judges.samples)
	if err != nil {
		return err
	}
	trained, _, err := candidate.answerSamples(l.samples.judges.samples)
	if err != nil {
		return err
	}
	remembers, _, err := candidate.answerSamples(l.samples.judgesOld)
	if err != nil {
		return err
	}

	r.Inputs = len(serves) + len(trained) + len(remembers)

	// Two comparisons: with what serves, on the present, and with the first weights, on the first data.
	r.Serving, r.Candidate = rightShare(serves), rightShare(trained)
	l.noteGain(r, steps)
	gain, deviation := comparePaired(serves, trained)
	kept, slack := comparePaired(l.first, remembers)
	switch {
	case gain < -betterBy*deviation || kept < -forgetMost-betterBy*slack:
		return l.discard(r, &l.counts.Worse, errWorse)
	case gain <= betterBy*deviation || kept < -forgetMost || l.held:
		return nil
	}

	// A publication that fails, on a full disk or a lost GPU, leaves the candidate for the next judgement.
	if err := l.publish(weights); err != nil {
		l.counts.Unpublished++
		r.Discarded = err
		return nil
	}
	r.Published = true
	return nil
}

func rightShare(right []bool) float64 {
	return float64(countRight(right).Right) / float64(max(1, len(right)))
}

// noteGain notes what each of the candidate's last steps has gained. A learner that gains nothing for a while rests until
// there is more to learn from.
func (l *Learner) noteGain(r *Report, steps int) {
	// The first judgement after a drift measures against what serves.
	if l.best == 0 {
		l.best = r.Serving
	}
	gain := max(0, r.Candidate-l.best)
	l.gains = append(l.gains, gain/float64(max(1, steps)))
	l.gains = l.gains[max(0, len(l.gains)-gainsKept):]

	if l.flat++; gain > 0 {
		l.flat = 0
		l.best = r.Candidate
	}
	if l.flat >= flatMax {
		l.learning, l.resting = false, len(l.samples.recent.samples)
	}
}
