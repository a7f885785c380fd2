package drift

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// Setting is the common part of a comparison's policies.
type Setting struct {
	GPUs    int
	Load    float64 // requests' share of the GPUs' capacity in full batches
	Periods int
	Tests   int // of each model and period, by which accuracy counts
	Seed    uint64
	// Schedule says how much a drift changes: night or paper.
	Schedule string
	// Phases lets drifts come at a random moment of a learner's period, the same for all drifts of a model; otherwise
	// they come when it begins.
	Phases  bool
	Models  string // the repository
	Library string // ONNX Runtime; "": as in ort.Library
	Given   *Given // replaces the simulation of requests; nil: simulate here

	firstSteps int // of training on the first day
	// retrained caches the accuracies of fully retrained weights, which are the same for all policies.
	retrained map[retraining]float64
}

// Given is another simulation's result: the time that serving leaves for learning. GPUs and Load are then
// unused.
type Given struct {
	Learning time.Duration // GPU time for learning per second, of all models
	Finish   float64       // share of the requests answered in time
}

// Constants of AdaInf's evaluation. Where it gives none, they are stated here: ℓ(b) of both models is that of
// Symphony's ResNet50 (T4).
const (
	alpha        = 1.053e6 // ns
	beta         = 5.072e6
	Period       = 50 * time.Second
	slo          = 400 * time.Millisecond
	tick         = time.Second
	labelled     = 60 // samples per second of each model's stream
	initial      = 1200
	batchMax     = 32 // of serving, and of training steps
	trainingCost = 3  // cost of forward and backward pass, in forward passes
)

// DefaultSetting is AdaInf's: 4 GPUs, 20 periods.
func DefaultSetting() Setting {
	return Setting{GPUs: 4, Load: 0.7, Periods: 20, Tests: 384, Seed: 1, Schedule: "night", Models: "models", firstSteps: 240, retrained: map[retraining]float64{}}
}

// Validate returns an error if a value is out of its range or the schedule is unknown.
func (s Setting) Validate() error {
	switch {
	case s.GPUs < 1 || s.GPUs > 64:
		return fmt.Errorf("gpus: %d: want 1 to 64", s.GPUs)
	case !(s.Load > 0 && s.Load <= 1):
		return fmt.Errorf("load: %v: want more than 0 to 1", s.Load)
	case s.Periods < 2 || s.Periods > 1000:
		return fmt.Errorf("periods: %d: want 2 to 1000", s.Periods)
	case s.Tests < 64 || s.Tests > perPeriod:
		return fmt.Errorf("tests: %d: want 64 to %d", s.Tests, perPeriod)
	case s.Given != nil && (s.Given.Learning < 0 || s.Given.Learning > 64*tick):
		return fmt.Errorf("learning: %v a second: want 0 to 64s", s.Given.Learning)
	}
	_, err := findSchedule(s.Schedule)
	return err
}

// stream is one model's inputs over time, with the true classes.
type stream struct {
	recipe  models.Recipe
	net     train.Net // with early exits for a policy that has them
	exit    int       // the exit that answers, from 1; 0: the whole network
	number  uint64
	seed    uint64
	tested  int       // tests of a period
	start   []float32 // the model's initial weights
	levels  []float64 // by period: 0 a clear day, 1 the darkest
	darkest float64
	bend    float64
	mixes   [][]float64 // by period: frequency of each class; nil: all are equal
	initial []learn.Sample
	paint   *models.Painter
	tests   []learn.Sample // of the period testsOf
	testsOf int
	labels  [][]float64 // by period: frequency of each class
}

// openStreams reads the models and draws their schedules. Each model's drifts come in its own periods.
func openStreams(s Setting) (all []*stream, err error) {
	plan, err := findSchedule(s.Schedule)
	if err != nil {
		return nil, err
	}
	for i, name := range []string{"vehicle-s", "activity-s"} {
		r, ok := models.Find(name)
		if !ok {
			return nil, fmt.Errorf("no recipe %s", name)
		}
		m, err := onnx.Read(filepath.Join(s.Models, name, "1", "model.onnx"))
		if err != nil {
			return nil, err
		}
		st := &stream{recipe: r, net: r.Net(), number: uint64(i), seed: s.Seed, tested: s.Tests, paint: models.NewPainter(), testsOf: -1}
		if st.start, err = r.Net().ReadWeights(m); err != nil {
			return nil, err
		}

		// Draw the schedule first: the first weights and samples belong to its first period.
		st.levels = drawLevels(rand.New(rand.NewPCG(s.Seed, 500+uint64(i))), s.Periods)
		st.darkest, st.bend = plan.darkest[name], plan.bend
		if most := plan.divergence[name]; most > 0 {
			st.mixes = drawMixes(rand.New(rand.NewPCG(s.Seed, 600+uint64(i))), st.levels, int(st.net.TargetLen()), most)
		}
		if st.initial, err = st.drawMany(0, initial, 0); err != nil {
			return nil, err
		}
		if err := st.specialise(s.firstSteps, s.Library); err != nil {
			return nil, err
		}

		all = append(all, st)
	}
	return all, nil
}

// The models in the tree were trained on every light and weather, so they have little left to learn. AdaInf trains on
// the first 40 % of its stream, so here the first weights are trained further on the stream's first day.
const firstRate = 1e-3

// specialise trains the first weights.
func (s *stream) specialise(steps int, library string) error {
	t, err := train.New(s.net, train.Options{Batch: batchMax, Weights: s.start, Library: library})
	if err != nil {
		return err
	}
	defer t.Close()
	return s.trainFirst(t, steps, firstRate)
}

// trainFirst trains on the first day, and makes the result the first weights. The learning rate falls along a cosine,
// as when the models were made.
func (s *stream) trainFirst(t *train.Trainer, steps int, most float64) error {
	for i := range steps {
		list, err := s.drawMany(ofTraining+i*batchMax, batchMax, 0)
		if err != nil {
			return err
		}
		rate := most * (1 + math.Cos(math.Pi*float64(i)/float64(steps))) / 2
		if err := trainOn(t, s.net, list, rate); err != nil {
			return err
		}
	}

	s.start = slices.Clone(t.Weights())
	return nil
}

// trainOn runs one step on a batch.
func trainOn(t *train.Trainer, net train.Net, list []learn.Sample, rate float64) error {
	classes := net.TargetLen()
	var images []byte
	targets := make([]float32, len(list)*classes)
	for i, s := range list {
		images = append(images, s.Input...)
		targets[i*classes+s.Class] = 1
	}
	_, err := t.Step(images, targets, rate)
	return err
}

// Numbering of a stream's samples: the initial ones, then each period's, then each period's tests.
const (
	ofTraining = 1 << 16
	ofPeriods  = 1 << 20
	ofTests    = 1 << 30
	perPeriod  = 1 << 14
)

// drawMany draws n samples under the conditions of a period.
func (s *stream) drawMany(from, n, period int) (list []learn.Sample, err error) {
	for i := range n {
		one, err := s.drawNumber(uint64(from+i), s.conditions(period))
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (s *stream) drawNumber(number uint64, c *scene.Conditions) (learn.Sample, error) {
	h, w := s.recipe.Size()
	pixels := make([]byte, h*w*3)
	truth, err := s.recipe.Draw(s.paint, 9000+2*s.seed+s.number<<32, number, c, pixels)
	return learn.Sample{Input: pixels, Class: truth.Class}, err
}

// drawOne draws sample i of a period.
func (s *stream) drawOne(period, i int) (learn.Sample, error) {
	return s.drawNumber(ofPeriods+uint64(period*perPeriod+i), s.conditions(period))
}

// accuracy answers a period's tests with weights.
func (s *stream) accuracy(period int, weights []float32, library string) (float64, error) {
	return s.accuracyOf(0, period, weights, library)
}

// accuracyOf is accuracy of an exit; 0: the whole network.
func (s *stream) accuracyOf(exit, period int, weights []float32, library string) (float64, error) {
	if s.testsOf != period {
		var err error
		if s.tests, err = s.drawMany(ofTests+period*perPeriod, s.tested, period); err != nil {
			return 0, err
		}
		s.testsOf = period
	}
	return learn.AccuracyAt(exit, s.net, weights, s.tests, library)
}
