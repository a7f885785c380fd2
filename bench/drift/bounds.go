package drift

import (
	"slices"
	"time"

	"downbeat.dev/backend/learn"
)

// Three policies for reference. None is realistic; they show the limits of a learner's parts.

// instant knows when drifts come and trains in no time. Some seconds after a drift it has weights that are fully
// retrained on the samples since, and serves them if they answer the tests better. Its accuracy is the limit set by
// the samples.
type instant struct {
	none
	setting Setting
	period  int
	second  int
	samples [][]learn.Sample // by model, of the period
	serving [][]float32
}

// instantAt are the seconds of a period at which it retrains.
var instantAt = []int{3, 5, 10, 20, 35}

func openInstant(s Setting, streams []*stream) (learning, error) {
	base, err := simulateServing(s, 1)
	i := &instant{none: none{streams, base}, setting: s, samples: make([][]learn.Sample, len(streams))}
	for _, st := range streams {
		i.serving = append(i.serving, st.start)
	}
	return i, err
}

func (i *instant) beginPeriod(period int) error {
	i.period, i.second = period, 0
	for m := range i.samples {
		i.samples[m] = nil
	}
	return nil
}

func (i *instant) offerSample(model int, one learn.Sample) error {
	i.samples[model] = append(i.samples[model], one)
	return nil
}

func (i *instant) endSecond(time.Duration) error {
	if i.second++; !slices.Contains(instantAt, i.second) {
		return nil
	}
	for m, st := range i.streams {
		if !st.drifts(i.period) {
			continue
		}

		// It knows only the samples since the drift.
		retrained, err := st.trainFully(i.samples[m], i.setting)
		if err == nil {
			err = i.takeBest(m, retrained)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// takeBest serves the weights that answer the period's tests best: the retrained, the serving or the first ones,
// which are best again when the light returns.
func (i *instant) takeBest(model int, retrained []float32) error {
	for _, weights := range [][]float32{i.streams[model].start, retrained} {
		if err := i.takeBetter(model, weights); err != nil {
			return err
		}
	}
	return nil
}

// takeBetter serves weights if they answer the period's tests better.
func (i *instant) takeBetter(model int, weights []float32) error {
	st := i.streams[model]
	now, err := st.accuracy(i.period, i.serving[model], i.setting.Library)
	if err != nil {
		return err
	}
	then, err := st.accuracy(i.period, weights, i.setting.Library)
	if err == nil && then > now {
		i.serving[model] = weights
	}
	return err
}

func (i *instant) weights(model int) []float32 { return i.serving[model] }

// clairvoyant has, at the beginning of a period, weights that are fully retrained on samples of all of it, and serves
// the best of its weights by the very tests that count: learning without delay. It trains only at drifts, by one
// recipe, so it is a strong reference but no proven bound.
type clairvoyant struct{ *instant }

func openClairvoyant(s Setting, streams []*stream) (learning, error) {
	l, err := openInstant(s, streams)
	if err != nil {
		return nil, err
	}

	return clairvoyant{l.(*instant)}, nil
}

func (c clairvoyant) beginPeriod(period int) error {
	if err := c.instant.beginPeriod(period); err != nil {
		return err
	}

	// If the light stays, the best existing weights serve on.
	for m, st := range c.streams {
		if !st.drifts(period) {
			continue
		}

		retrained, err := st.trainOnPeriod(period, c.setting)
		if err == nil {
			err = c.takeBest(m, retrained)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c clairvoyant) endSecond(time.Duration) error { return nil }

// watching detects drift as ours does, and trains nothing: the first weights serve. Its detection rate is that of the
// test alone.
type watching struct{ *ours }

func openWatching(s Setting, streams []*stream) (learning, error) {
	l, err := openOurs(s, streams)
	if err != nil {
		return nil, err
	}
	return watching{l.(*ours)}, nil
}

func (w watching) endSecond(now time.Duration) error {
	if err := w.offerAnswered(); err != nil {
		return err
	}
	for _, l := range w.learners {
		if _, _, err := l.Look(now); err != nil {
			return err
		}
	}
	return nil
}
