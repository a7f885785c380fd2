package learn

import (
	"fmt"
	"time"

	"downbeat.dev/backend/train"
)

// Work is the kind of work that a step did.
type Work uint8

// The kinds of work. None means that there is nothing to do until more samples come.
const (
	None Work = iota
	Labelling
	Training
	Judging
)

var workNames = [...]string{"none", "labelling", "training", "judging"}

// String returns the name of the work.
func (w Work) String() string {
	if int(w) < len(workNames) {
		return workNames[w]
	}
	return fmt.Sprintf("work %d", uint8(w))
}

// Report describes a step's work and its duration on the processor that ran it.
type Report struct {
	Work   Work
	Took   time.Duration
	Inputs int     // labelled, trained on, or answered for a judgement
	Loss   float32 // of a training step
	// Unlabelled is the error of the teacher in a labelling step; it is asked again later.
	Unlabelled error
	// For a judgement: the shares of samples, not trained on by either, that the serving weights and the candidate
	// answered rightly, and whether the candidate serves from now on.
	Serving, Candidate float64
	Published          bool
	Discarded          error // why the candidate was discarded or not published
	// Unfinished says that a training step has stopped between two layers: the next one goes on with it.
	Unfinished bool
}

const (
	judgeEvery = 10 // training steps
	unjudged   = 40 // training steps after which a learner waits for samples to judge by
	judgedMin  = 48 // fresh samples
	// The candidate is the mean of the latest half of the steps since the last drift, of meanLeast at least and of about
	// meanMost at most: single steps fluctuate, and a longer mean is the better the less the weights still move.
	meanLeast = 20
	meanMost  = 150
	// stepAssumed is the length of a training step before the first: that of a small net on a processor.
	stepAssumed = 5 * time.Millisecond
)

// Step does the next unit of work. Its length is bounded: a batch of labels, one training step, or a judgement; with
// brief steps, a batch of answers for a judgement or a look. An error means that the machine failed. Errors of the
// candidate or the teacher are in the report, and the serving weights stay.
func (l *Learner) Step() (r Report, err error) { return l.StepWithin(0) }

// StepWithin is Step, except that a training step stops after about the limit, if its trainer can; 0: it does not stop.
func (l *Learner) StepWithin(limit time.Duration) (r Report, err error) {
	began := time.Now()
	err = l.doNext(&r, limit)
	r.Took = time.Since(began)
	if r.Work == Training {
		l.partly += r.Took
	}
	if r.Work == Training && !l.stepping {
		l.noteStepTime(l.partly)
		l.partly = 0
	}
	return r, err
}

func (l *Learner) doNext(r *Report, limit time.Duration) (err error) {
	switch {
	// Label first: the other work learns from labels.
	case l.labels():
		r.Work, r.Inputs = Labelling, l.labelled()
		r.Unlabelled = l.label()
		return nil
	case l.options.Brief:
		if did, err := l.prepare(r); did || err != nil {
			return err
		}
	case l.Settling():
		*r, err = l.Settle()
		return err
	}

	// The weights under judgement stay unchanged until Settle.
	if l.settlementDue() || !l.trains() {
		return nil
	}
	r.Work = Training
	return l.train(r, limit)
}

// trains reports whether a step has begun, or there are samples to train on, and samples to judge the result soon.
func (l *Learner) trains() bool {
	return l.stepping || l.learning && l.canTrain() && l.sinceJudge < unjudged
}

// canTrain reports whether there are samples of the present to train on; the first of them judge nothing.
func (l *Learner) canTrain() bool {
	// Take the first batch from the fresh samples if enough remain to judge by.
	s := l.samples
	if short := l.options.Batch - len(s.recent.samples); short > 0 && len(s.fresh) >= 2*l.options.Batch {
		s.use(short)
	}
	return len(s.recent.samples) >= l.options.Batch
}

// noteStepTime updates the mean duration of a training step, unless the options state it.
func (l *Learner) noteStepTime(took time.Duration) {
	switch {
	case l.options.StepTime > 0:
	case l.took == 0:
		l.took = took
	default:
		l.took += (took - l.took) / 8
	}
}

// beginStep begins a step of the training graph on a new batch.
func (l *Learner) beginStep() error {
	net := &l.options.Net
	h, w, classes := int(net.H), int(net.W), int(net.Head.(train.Classes).N)
	images := make([]byte, l.options.Batch*h*w*3)
	targets := make([]float32, l.options.Batch*classes)
	for i, s := range l.samples.drawBatch(l.options.Batch, l.options.Recent) {
		perturb(images[i*h*w*3:], s.Input, h, w, l.options.Mirror, l.samples.rng)
		targets[i*classes+s.Class] = 1
	}

	l.stepping = true
	return l.trainer.Begin(images, targets, l.rate)
}

// train runs one step of the training graph, or a part of it.
func (l *Learner) train(r *Report, limit time.Duration) error {
	if !l.stepping {
		if err := l.beginStep(); err != nil {
			return err
		}
	}

	done, loss, err := l.trainer.Advance(limit)
	if r.Unfinished = !done && err == nil; r.Unfinished {
		l.counts.Stopped++
		return nil
	}
	l.stepping = false
	r.Inputs, r.Loss = l.options.Batch, loss

	// Only NaN differs from itself. Nothing of such a step may reach the candidate.
	if loss != loss {
		return l.discard(r, &l.counts.NotFinite, err)
	}
	if err != nil {
		return err
	}
	l.averageWeights()
	l.counts.Steps++
	l.sinceJudge++
	l.gain.NoteStep()
	return nil
}

// averageWeights adds the trainer's weights to the candidate.
func (l *Learner) averageWeights() {
	// Give the first steps more weight, else the initial weights would dominate the mean.
	l.averaged++
	span := float32(min(l.averaged, max(meanLeast, min(l.averaged/2, meanMost))))
	for i, w := range l.trainer.Weights() {
		l.candidate[i] += (w - l.candidate[i]) / span
	}
}
