package joint

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/drift"
)

// learning really trains the drifting models in the time that a policy left (bench/drift), and caches the results.
type learning struct {
	setting drift.Setting
	known   map[lesson]float64
	told    func(string)
}

// lesson is the key of a cached accuracy.
type lesson struct {
	policy string
	time   time.Duration // per second
}

const (
	// lessonStep is the resolution of training times: runs are real and take a minute.
	lessonStep = 100 * time.Millisecond
	// lessonMost is one GPU per model: a learner's steps follow one another.
	lessonMost = learningModels * time.Second
)

func newLearning(o *Options, told func(string)) *learning {
	s := drift.DefaultSetting()
	s.Periods, s.Seed, s.Models, s.Library = int(o.Span/drift.Period), o.Seed, o.Models, o.Library
	return &learning{setting: s, known: map[lesson]float64{}, told: told}
}

// learntAccuracy returns the accuracy of the drifting models, averaged over time, if they learn by a policy with this
// GPU time, in GPUs.
func (l *learning) learntAccuracy(ctx context.Context, policy string, gpus float64) (float64, error) {
	what := lesson{policy, min(lessonMost, time.Duration(gpus*1e9).Round(lessonStep))}

	// A policy without learning uses no time.
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
	// The simulation that found the time decides whether learning delays requests.
	s := l.setting
	s.Given = &drift.Given{Learning: what.time, Finish: 1}
	row, err := chosen[0].Run(ctx, s, func(line string) { l.told(fmt.Sprintf("learning in %v of GPU time a second: %s", what.time, line)) })
	if err != nil {
		return 0, err
	}
	l.known[what] = row.Accuracy
	return row.Accuracy, nil
}
