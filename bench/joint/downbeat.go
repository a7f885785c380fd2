package joint

import (
	"context"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

const (
	// stepTime is the length of a learner's step: the longest that the ranker runs on almost full GPUs.
	stepTime = 2 * time.Millisecond

	// trialSpan is the length of a trial. trialWarm is its uncounted beginning, in which the rates are unknown,
	// unlike when a real session asks.
	trialSpan, trialWarm = 6 * time.Second, time.Second
	trialSeed            = 1000 // added to the trace's seed: a trial does not know the future
)

// serveDownbeat is ours: core/sched with the engine's prices, families, frames' deadlines, admission by trial, and
// learners whose steps are spare work.
func serveDownbeat(_ context.Context, t *trace) (*outcome, error) {
	n, err := t.admitByTrial()
	if err != nil {
		return nil, err
	}
	return t.serve(t.byDownbeat(t.streams[:n], true))
}

// byDownbeat lets the scheduler serve some streams.
func (t *trace) byDownbeat(streams []stream, learn bool) serving {
	s := serving{models: t.familiesOf(), streams: streams, again: true, server: func(w *sim.World, _ *sim.Frames) sim.Server { return sim.NewDownbeat(w) }}

	// A stage may use the time that earlier ones left, so its SLO is the latency minus the time of the later stages.
	for k := range t.apps {
		for j := range t.apps[k].modules {
			s.models[t.apps[k].first+j].SLO = sim.Duration(t.apps[k].latency - t.offsets[k][j])
		}
	}

	// A trial checks the sessions' needs only: learners use the remaining time in any case.
	if learn {
		s.bought = t.bought
		for i := range learningModels {
			s.learners = append(s.learners, &sim.Learner{Step: sim.Duration(stepTime), Shortest: 0.7, Seed: t.seed + uint64(i)})
		}
	}
	return s
}

// learningModels is the number of drifting models, each with a learner.
const learningModels = 2

// admitByTrial returns how many of the streams, in their order, fit together. All ask at once: while they need too
// much, or a trial fails, the last one is removed.
func (t *trace) admitByTrial() (int, error) {
	for n := len(t.streams); n > 0; n-- {
		// Check the demand first: it is fast, and trials of far too many streams take longest.
		if !t.fitsByDemand(n) {
			continue
		}
		o, err := t.tryStreams(n)
		if err != nil {
			return 0, err
		}

		// A new stream must harm neither the earlier ones nor the families.
		if _, worst := o.lostShare(); o.keptInTrial() == n && worst <= 1-keptShare {
			return n, nil
		}
	}
	return 0, nil
}

// fitsByDemand reports whether the first streams and the families need at most u* of the GPUs of each kind, at the
// floors.
func (t *trace) fitsByDemand(n int) bool {
	_, use := t.assignServices(-1, t.streams[:n])
	return use <= plan.DefaultTargets().At(gpus/kinds)
}

// tryStreams runs the first streams for some seconds with other requests of the same rates. Time is promised, not
// accuracy, so all are tried at the floors, as in core/app.Admit; when serving, the price chooses.
func (t *trace) tryStreams(n int) (*outcome, error) {
	trial, err := drawTrace(t.seed+trialSeed, t.times, trialSpan)
	if err != nil {
		return nil, err
	}

	// The trial has the trace's streams with their phases.
	trial.streams, trial.warm = t.streams, trialWarm
	return trial.serve(trial.withoutChoice(t.streams[:n], false))
}

// withoutChoice lets the scheduler serve streams with one network of each service, the best or the lightest.
func (t *trace) withoutChoice(streams []stream, best bool) serving {
	s := t.byDownbeat(streams, false)
	fixed := t.fixedAt(best)
	for i := range fixed {
		fixed[i].SLO = s.models[i].SLO
	}
	s.models = fixed
	return s
}

// keptInTrial returns how many sessions lost no more than their share of a trial's frames. In such a short time that
// is one frame or none: round the share as for a minute.
func (o *outcome) keptInTrial() (kept int) {
	for _, s := range o.sessions {
		if s.asked-s.good <= int(float64(s.asked)*(1-keptShare)+0.5) {
			kept++
		}
	}
	return kept
}
