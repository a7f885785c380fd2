package joint

import (
	"context"
	"sort"
	"time"

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
		for i := range learningModels {
			s.learners = append(s.learners, &sim.Learner{Step: sim.Duration(stepTime), Shortest: 0.7, Seed: t.seed + uint64(i)})
		}
	}
	return s
}

// learningModels is how many models drift, each with a learner.
const learningModels = 2

// admitByTrial returns how many of the streams, in their order, fit together: as many as pass a trial.
func (t *trace) admitByTrial() (int, error) {
	var failed error
	refused := sort.Search(len(t.streams), func(n int) bool {
		kept, err := t.tryStreams(n + 1)
		if err != nil {
			failed = err
		}
		return !kept
	})
	return refused, failed
}

// tryStreams runs the first streams for some seconds of other requests of the same rates, and reports whether each keeps its frames
// and the families keep their requests.
func (t *trace) tryStreams(n int) (bool, error) {
	trial, err := drawTrace(t.seed+trialSeed, t.times, trialSpan)
	if err != nil {
		return false, err
	}

	// The streams that ask are those of the trace, with the phases that they have.
	trial.streams, trial.warm = t.streams, trialWarm
	o, err := trial.serve(trial.byDownbeat(t.streams[:n], false))
	if err != nil {
		return false, err
	}

	// A newcomer must harm nobody: neither those before it nor the families.
	kept, _ := o.keptSessions()
	_, worst := o.lostShare()
	return kept == n && worst <= 1-keptShare, nil
}
