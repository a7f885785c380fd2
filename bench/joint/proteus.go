package joint

import (
	"context"

	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/sim"
)

// programGap is the relative gap to the optimum of Proteus's programs, as in bench/accuracy.
const programGap = 1e-3

// serveProteus is Proteus: an exact program places one network on each GPU, every 30 s and when the demand changes,
// with free loading. Where the method does not apply: a frame's stage is a family with its own share of the latency;
// all sessions are admitted; nothing learns.
func serveProteus(ctx context.Context, t *trace) (*outcome, error) {
	var running scaling.Policy
	o, err := t.serve(serving{models: t.familiesOf(), streams: t.streams, server: func(w *sim.World, _ *sim.Frames) sim.Server {
		running = scaling.NewProteus(ctx, w, scaling.Settings{Gap: programGap})
		return running
	}})
	if err != nil {
		return nil, err
	}
	return o, running.Report().Err
}
