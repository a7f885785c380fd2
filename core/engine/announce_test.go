package engine

import (
	"testing"

	"downbeat.dev/core/wire"
)

// hasty asks as soon as it hears that a model is ready.
type hasty struct {
	*front
	sent bool
}

func (h *hasty) Models(m []wire.ModelInfo) {
	for _, i := range m {
		if i.Ready && !h.sent {
			h.sent = true
			h.Submit([]wire.Submit{{ID: 1, Model: i.ID, Budget: 50e6}})
		}
	}
}

// TestReadyMeansReady: what is announced can be asked for at once, as frontends do with the requests
// that a scheduler's restart left with them.
func TestReadyMeansReady(t *testing.T) {
	s := newStage(t, Options{})
	h := &hasty{front: &front{s: s, models: map[string]wire.ModelInfo{}}}
	var err error
	if h.Frontend, err = s.e.OpenFrontend(wire.FrontendHello{Name: "f", DataAddr: "f"}, h); err != nil {
		t.Fatal(err)
	}
	b := s.mustBackend(hello("b", 1, slope, "m"))
	s.run(100 * ms)
	s.ended(1, "output")
	if len(b.batches) != 1 {
		t.Errorf("%d batches, want 1", len(b.batches))
	}
}
