package joint

import (
	"context"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sim"
)

const (
	// stepTime is the length of a learner's step: the longest that the ranker runs where GPUs are nearly full.
	stepTime = 2 * time.Millisecond

	// trialSpan is how long a trial is, trialWarm how much of it is not counted: rates are not known yet, as they are where a session asks.
	trialSpan, trialWarm = 6 * time.Second, time.Second
	trialSeed            = 1000 // added to the trace's seed: a trial does not know what will come
)

// serveDownbeat is ours: core/sched with the engine's prices, families, frames' deadlines, admission by trial, and learners whose
// steps are spare work.
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

	// Stages may use the time that earlier ones left, so that their SLO is all but what lies behind them.
	for k := range t.apps {
		for j := range t.apps[k].modules {
			s.models[t.apps[k].first+j].SLO = sim.Duration(t.apps[k].latency - t.offsets[k][j])
		}
	}

	// A trial asks what sessions need: learners take what is left in any case.
	if learn {
		s.bought = t.bought
		for i := range learningModels {
			s.learners = append(s.learners, &sim.Learner{Step: sim.Duration(stepTime), Shortest: 0.7, Seed: t.seed + uint64(i)})
		}
	}
	return s
}

// learningModels is how many models drift, each with a learner.
const learningModels = 2

// admitByTrial returns how many of the streams, in their order, fit together. All ask at once: as long as they need too much, or a
// trial fails, the last gives way.
func (t *trace) admitByTrial() (int, error) {
	for n := len(t.streams); n > 0; n-- {
		// Demand is quick to test, and a trial of what cannot fit takes longest.
		if !t.fitsByDemand(n) {
			continue
		}
		o, err := t.tryStreams(n)
		if err != nil {
			return 0, err
		}

		// A newcomer must harm nobody: neither those before it nor the families.
		if _, worst := o.lostShare(); o.keptInTrial() == n && worst <= 1-keptShare {
			return n, nil
		}
	}
	return 0, nil
}

// fitsByDemand tells whether the first streams and the families need at most u* of the GPUs of each kind at the floors.
func (t *trace) fitsByDemand(n int) bool {
	_, use := t.assignServices(-1, t.streams[:n])
	return use <= plan.DefaultTargets().At(gpus/kinds)
}

// tryStreams runs the first streams for some seconds of other requests of the same rates. Time and not accuracy is promised, so that
// all are tried at the floors, as core/app.Admit tries sessions; what serves lets the price choose.
func (t *trace) tryStreams(n int) (*outcome, error) {
	trial, err := drawTrace(t.seed+trialSeed, t.times, trialSpan)
	if err != nil {
		return nil, err
	}

	// The streams that ask are those of the trace, with the phases that they have.
	trial.streams, trial.warm = t.streams, trialWarm
	return trial.serve(trial.withoutChoice(t.streams[:n], false))
}

// withoutChoice lets the scheduler serve streams with one network of each service: the best, or the lightest.
func (t *trace) withoutChoice(streams []stream, best bool) serving {
	s := t.byDownbeat(streams, false)
	fixed := t.fixedAt(best)
	for i := range fixed {
		fixed[i].SLO = s.models[i].SLO
	}
	s.models = fixed
	return s
}

// keptInTrial is how many sessions lost no more than their share of a trial's frames. In so short a time that is a frame or none: it is
// rounded, as it is of a minute's.
func (o *outcome) keptInTrial() (kept int) {
	for _, s := range o.sessions {
		if s.asked-s.good <= int(float64(s.asked)*(1-keptShare)+0.5) {
			kept++
		}
	}
	return kept
}
