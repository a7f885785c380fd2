package joint

import (
	"context"

	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/sim"
)

// serveBolted is all four methods combined, each unchanged and without knowledge of the others. Rim's shares admit
// sessions, Proteus's program places a network on each GPU, each GPU defers its batches to the frontrun (Symphony's
// rule, also in Proteus §5), and AdaInf trains the drifting models in the time that a waiting request's SLO leaves.
// Deferral and training spend the same time.
func serveBolted(ctx context.Context, t *trace) (*outcome, error) {
	training := &scaling.Training{Families: make([]bool, len(t.services))}
	for i := range t.services {
		training.Families[i] = drifting(t.services[i].name)
	}

	// Rim counts shares of whole workers; it knows no placement and no batches.
	var running scaling.Policy
	o, err := t.serve(serving{models: t.familiesOf(), streams: t.placeByRim().streams(t), server: func(w *sim.World, _ *sim.Frames) sim.Server {
		running = scaling.NewProteus(ctx, w, scaling.Settings{Gap: programGap, Training: training})
		return running
	}})
	if err != nil {
		return nil, err
	}
	o.learning = training.Took
	return o, running.Report().Err
}
