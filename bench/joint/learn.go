package joint

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/drift"
)

// learning trains the models that drift, for real, in the time that a policy left them (bench/drift), and remembers what that gave.
type learning struct {
	setting drift.Setting
	known   map[lesson]float64
	told    func(string)
}

// lesson is what an accuracy depends on.
type lesson struct {
	policy string
	time   time.Duration // in each second
}

const (
	// lessonStep is how finely training times are told apart: runs are real and take a minute.
	lessonStep = 100 * time.Millisecond
	// lessonMost is a GPU for each model: a learner's steps follow one another.
	lessonMost = learningModels * time.Second
)

func newLearning(o *Options, told func(string)) *learning {
	s := drift.DefaultSetting()
	s.Periods, s.Seed, s.Models, s.Library = int(o.Span/drift.Period), o.Seed, o.Models, o.Library
	return &learning{setting: s, known: map[lesson]float64{}, told: told}
}

// learntAccuracy is that of the models' answers, mean over time, when they learn by a policy with so many GPUs' worth of time.
func (l *learning) learntAccuracy(ctx context.Context, policy string, gpus float64) (float64, error) {
	what := lesson{policy, min(lessonMost, time.Duration(gpus*1e9).Round(lessonStep))}

	// Who learns nothing has no use for time.
	if policy == noLearning {
		what.time = 0
	}
	if a, ok := l.known[what]; ok {
		return a, nil
	}

	chosen, err := drift.Select(policy)
	if err != nil {
		return 0, err
	}
	// That learning keeps no request waiting was shown, or not, where its time was found.
	s := l.setting
	s.Given = &drift.Given{Learning: what.time, Finish: 1}
	row, err := chosen[0].Run(ctx, s, func(line string) { l.told(fmt.Sprintf("learning in %v of GPU time a second: %s", what.time, line)) })
	if err != nil {
		return 0, err
	}
	l.known[what] = row.Accuracy
	return row.Accuracy, nil
}
