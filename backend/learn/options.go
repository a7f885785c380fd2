package learn

import (
	"fmt"
	"time"

	"downbeat.dev/backend/train"
)

// Options are the options of a Learner. The meaning of 0 stands beside each field.
type Options struct {
	Net     train.Net // must end in train.Classes
	Weights []float32 // the serving weights
	Version int       // their number, at least 1
	Initial []Sample  // labelled, from the data on which the first weights were trained: at least 64
	Library string    // ONNX Runtime; "": as in ort.Library
	// Trainer opens what runs the training steps; nil: train.New.
	Trainer func(train.Net, train.Options) (train.Stepper, error)
	Seed    uint64

	// Every keeps one in this many inputs that are offered without a class. 0: all.
	Every int
	// Teach labels n inputs, one after another in images. nil: inputs without a class are not kept.
	Teach func(images []byte, n int) ([]int, error)
	// Publish stores weights durably and makes them serve; the previous ones serve until it returns nil. nil: only
	// the learner uses the weights.
	Publish func(Version) error
	// Stored returns the weights of an earlier version, for rollbacks to versions from before a restart. nil: only
	// versions that this learner has published can be put in force again.
	Stored func(version int) ([]float32, error)

	Period   time.Duration // between two starts of a comparison with the reference; 0: 50 s, as in AdaInf
	Looks    int           // comparisons within a period; 0: 5
	Level    float64       // share of periods without drift that may raise an alarm; 0: 0.03
	StepTime time.Duration // duration of a training step; 0: as measured
	Batch    int           // of a training step; 0: 32
	Rate     float64       // learning rate; 0: 2e-3
	Recent   float64       // share of a step's samples that are of the present; 0: 0.6
	Mirror   bool          // an image's mirror image has the same class, so steps may train on it
	// Brief keeps steps short: a training step, the labels of a few inputs, or a batch of answers for a judgement or
	// a look. BeginLook and Settle begin these, Look and Settle end them.
	Brief bool
}

const (
	initialMin    = 64               // samples of the first data
	defaultPeriod = 50 * time.Second // as in AdaInf
)

// complete sets defaults and refuses invalid options.
func (o *Options) complete() error {
	if _, ok := o.Net.Head.(train.Classes); !ok {
		return fmt.Errorf("net %s: only classifiers are trained while they serve: an answer of another head is neither right nor wrong", o.Net.Name)
	}

	// Set the defaults first, so that the checks see the used values.
	if o.Trainer == nil {
		o.Trainer = func(n train.Net, c train.Options) (train.Stepper, error) { return train.New(n, c) }
	}
	setDefault(&o.Every, 1)
	setDefault(&o.Period, defaultPeriod)
	setDefault(&o.Looks, 5)
	setDefault(&o.Level, 0.03)
	setDefault(&o.Batch, 32)
	setDefault(&o.Rate, 2e-3)
	setDefault(&o.Recent, 0.6)

	switch {
	case o.Version < 1:
		return fmt.Errorf("version: %d: want 1 or more", o.Version)
	case len(o.Initial) < initialMin:
		return fmt.Errorf("initial: %d samples: want %d or more, so that what was learnt before is not forgotten", len(o.Initial), initialMin)
	case o.Every < 1:
		return fmt.Errorf("every: %d: want 1 or more", o.Every)
	case o.Period < 0 || o.StepTime < 0:
		return fmt.Errorf("period %v, step time %v: want 0 or more", o.Period, o.StepTime)
	case o.Looks < 1 || o.Looks > 9:
		return fmt.Errorf("looks: %d: want 1 to 9 in a period", o.Looks)
	case !(o.Level > 0 && o.Level < 1):
		return fmt.Errorf("level: %v: want more than 0 and less than 1", o.Level)
	case !(o.Rate > 0 && o.Rate <= 1):
		return fmt.Errorf("rate: %v: want more than 0 and at most 1", o.Rate)
	case !(o.Recent > 0 && o.Recent < 1):
		return fmt.Errorf("recent: %v: want more than 0 and less than 1", o.Recent)
	}
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Sample is an input and its class.
type Sample struct {
	Input []byte // H·W·3 bytes
	Class int    // index of the head's output
	// Served is the answer that the input got as a request. It saves a judge of that version the answer.
	Served Served

	scores []float32 // of the version that served, until the class is known
}

// Served is a version's answer to a request, by the whole net.
type Served struct {
	Version int // its number; 0: the answer is not known
	Class   int // with the best score
	// Sure is the probability that this version gave to the sample's true class, its score; 0: not known.
	Sure float32
}

// NewServed returns the answer of a version that gave these scores, to a sample of a class.
func NewServed(version int, scores []float32, class int) Served {
	return Served{Version: version, Class: bestClass(scores), Sure: probability(scores, class)}
}

// checkSample returns an error for an invalid sample.
func (o *Options) checkSample(s Sample) error {
	if want := int(o.Net.H*o.Net.W) * 3; len(s.Input) != want {
		return fmt.Errorf("sample of %d bytes: the net %s takes %d", len(s.Input), o.Net.Name, want)
	}
	if n := o.Net.Head.(train.Classes).N; s.Class < 0 || int64(s.Class) >= n {
		return fmt.Errorf("class: %d: the net %s has 0 to %d", s.Class, o.Net.Name, n-1)
	}
	if p := s.Served.Sure; !(p >= 0 && p <= 1) {
		return fmt.Errorf("served: probability %v of the class: want 0 to 1", p)
	}
	return nil
}
