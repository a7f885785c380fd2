package drift

import (
	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
)

// answering gives a stream's samples the answers that they got as requests. Serving costs the learner nothing, so
// these answers are not charged.
type answering struct {
	net       train.Net
	library   string
	version   int // of the predictor's weights; 0: no predictor yet
	predictor *train.Predictor
	waiting   []learn.Sample // of this second
}

// answerWaiting answers and returns the second's samples. weights serve, and have the number version.
func (a *answering) answerWaiting(version int, weights []float32) ([]learn.Sample, error) {
	if version != a.version {
		if err := a.openPredictor(version, weights); err != nil {
			return nil, err
		}
	}

	list := a.waiting
	a.waiting = nil
	images := make([]byte, labelled*int(a.net.H*a.net.W)*3)
	for i, s := range list {
		copy(images[i*len(s.Input):], s.Input)
	}

	out, err := a.predictor.Predict(images)
	if err != nil {
		return nil, err
	}

	scores, classes := out["scores"], int(a.net.TargetLen())
	for i := range list {
		list[i].Served = learn.NewServed(version, scores[i*classes:][:classes], list[i].Class)
	}
	return list, nil
}

// openPredictor replaces the predictor.
func (a *answering) openPredictor(version int, weights []float32) error {
	m, err := a.net.Serving(weights)
	if err != nil {
		return err
	}

	a.close()
	a.predictor, err = train.NewPredictor(a.library, m, labelled)
	if err == nil {
		a.version = version
	}
	return err
}

func (a *answering) close() {
	if a.predictor != nil {
		a.predictor.Close()
	}
	a.predictor, a.version = nil, 0
}
