package engine

import (
	"strings"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// hasty sends a request as soon as it hears that a model is ready.
type hasty struct {
	*front
	sent bool
}

func (h *hasty) Models(m []model.Info) {
	for _, i := range m {
		if i.Ready && !h.sent {
			h.sent = true
			h.Submit([]wire.Submit{{ID: 1, Model: i.ID, Budget: 50e6}})
		}
	}
}

// TestReadyMeansReady shows that a model can be requested as soon as it is announced. Frontends do this with the
// requests that remain after a restart of the scheduler.
func TestReadyMeansReady(t *testing.T) {
	s := newStage(t, Options{})
	h := &hasty{front: &front{s: s, models: map[string]model.Info{}}}
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

// TestFailedModelsAreAnnounced shows that frontends learn of models that a backend cannot serve, with the reason,
// until some backend serves them.
func TestFailedModelsAreAnnounced(t *testing.T) {
	s := newStage(t, Options{})
	f := s.frontend()
	h := hello("b", 1, slope, "m")
	h.Failed = []model.Info{{Name: "broken", Version: "1", Reason: "no such file"}, {Name: "m", Version: h.Models[0].Info.Version + "0", Reason: "corrupt"}}
	b := s.mustBackend(h)
	if m := f.models["broken"]; m.Ready || m.Reason != "no such file" {
		t.Errorf("%+v", m)
	}

	// Other backends may have the model that this one lacks.
	other := hello("other", 1, slope, "m", "broken")
	other.SubCluster = "other"
	s.mustBackend(other)
	if m := f.models["broken"]; !m.Ready || m.Reason != "" {
		t.Errorf("served by another: %+v", m)
	}
	b.Close()

	for want, failed := range map[string][]model.Info{
		`failed model 0: name ""`: {{Reason: "x"}}, `failed model 0: name "x"`: {{Name: "x"}}, `failed model 0: name "m"`: {{Name: "m", Version: h.Models[0].Info.Version, Reason: "x"}},
	} {
		h := hello("bad", 1, slope, "m")
		h.Failed = failed
		if _, err := s.e.OpenBackend(h, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
}
