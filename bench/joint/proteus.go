package joint

import (
	"context"

	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/sim"
)

// programGap is how far from their optimum Proteus's programs may end, as in bench/accuracy.
const programGap = 1e-3

// serveProteus is Proteus: an exact program places one network on each GPU, every 30 s and when demand moves, loading for nothing.
// What it does not know: a frame's stage is a family with its own share of the latency; all sessions are let in; nothing learns.
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
