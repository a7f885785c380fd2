package drift

import (
	"math"
	"slices"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
)

// A learner that keeps weights because they are good enough gives requests no new weights, without any loss. So the
// criterion is whether the serving weights are as good as weights retrained on the period's own samples.

const (
	fullSteps   = 300
	fullSamples = 1200
	fullRecent  = 19    // of a batch's 32 samples are the period's: 60 %, as in a learner's; the others are the first data
	asGood      = 0.015 // up to 1.5 points less accuracy is as good: one standard error of the test set
)

// retraining is the key of an accuracy in Setting.retrained.
type retraining struct {
	model    uint64
	seed     uint64
	period   int
	periods  int
	schedule string
}

// fullyRetrained returns the accuracy, in a period, of weights trained on samples of all of it for as long as
// necessary: no system could have them at its beginning.
func (s *stream) fullyRetrained(period int, set Setting) (float64, error) {
	key := retraining{s.number, s.seed, period, len(s.levels), set.Schedule}
	if a, ok := set.retrained[key]; ok {
		return a, nil
	}

	weights, err := s.trainOnPeriod(period, set)
	if err != nil {
		return 0, err
	}

	a, err := s.accuracy(period, weights, set.Library)
	if err == nil && set.retrained != nil {
		set.retrained[key] = a
	}
	return a, err
}

// trainOnPeriod trains fully on samples of all of a period.
func (s *stream) trainOnPeriod(period int, set Setting) ([]float32, error) {
	list, err := s.drawMany(ofPeriods+period*perPeriod, fullSamples, period)
	if err != nil {
		return nil, err
	}

	return s.trainFully(list, set)
}

// trainFully trains the first weights on samples and on the first data, for as long as necessary.
func (s *stream) trainFully(list []learn.Sample, set Setting) ([]float32, error) {
	t, err := train.New(s.net, train.Options{Batch: batchMax, Weights: s.start, Library: set.Library})
	if err != nil {
		return nil, err
	}

	defer t.Close()

	// As in a learner's, every batch contains first data; the learning rate falls along a cosine.
	for i := range fullSteps {
		batch := list[i*fullRecent%(len(list)-fullRecent):][:fullRecent:fullRecent]
		batch = append(batch, s.initial[i*(batchMax-fullRecent)%(len(s.initial)-batchMax):][:batchMax-fullRecent]...)
		if err := trainOn(t, s.net, batch, firstRate*(1+math.Cos(math.Pi*float64(i)/fullSteps))/2); err != nil {
			return nil, err
		}
	}
	return slices.Clone(t.Weights()), nil
}
