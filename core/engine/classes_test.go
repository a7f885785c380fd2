package engine

import (
	"slices"
	"testing"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// TestABackendThatComesGetsTheClassesOfOthers shows that a new backend gets the classes of its models and of no
// others. If it loads a model later, it gets that model's classes then.
func TestABackendThatComesGetsTheClassesOfOthers(t *testing.T) {
	s := newStage(t, Options{})
	open := func(h wire.BackendHello) wire.BackendHello {
		for i := range h.Models {
			h.Models[i].Info.Inputs = []model.Tensor{{Name: "x", Datatype: model.FP32, Shape: []int64{model.OpenDim}}}
		}
		return h
	}
	first := open(current(hello("first", 1, slope, "m", "k")))
	for i := range first.Models {
		first.Models[i].Info.Version = "1"
	}
	class := first.Models[0]
	class.Info.Version, class.Info.Inputs = model.ClassVersion("1", "7"), []model.Tensor{{Name: "x", Datatype: model.FP32, Shape: []int64{7}}}
	first.Models = append(first.Models, class)
	if b := s.mustBackend(first); len(b.commanded) != 0 {
		t.Errorf("the first is asked for what it has: %+v", b.commanded)
	}

	later := open(current(hello("later", 1, slope, "m")))
	later.Models[0].Info.Version = "1"
	b := s.mustBackend(later)
	if len(b.commanded) != 1 || b.commanded[0].Op != wire.AddShape || b.commanded[0].Model != "m" || b.commanded[0].Version != "1" || b.commanded[0].Shape != "7" {
		t.Fatalf("commanded %+v, want the class 7 of m", b.commanded)
	}
	if !b.Answer([]wire.ModelAnswer{{Number: b.commanded[0].Number}}) {
		t.Error("an answer that nobody waits for ended the session")
	}

	other := open(current(hello("other", 1, slope, "k")))
	other.Models[0].Info.Version = "1"
	if b := s.mustBackend(other); len(b.commanded) != 0 {
		t.Errorf("a backend without the model: %+v", b.commanded)
	}

	idle := open(current(hello("idle", 1, slope, "m")))
	idle.Models[0].Info.Version, idle.Models[0].Loaded = "1", []bool{false}
	b = s.mustBackend(idle)
	if len(b.commanded) != 0 {
		t.Errorf("a model that is not loaded: %+v", b.commanded)
	}
	b.Report([]wire.PlacementReport{{GPU: 0, Model: 0, State: wire.Loaded}})
	if !slices.ContainsFunc(b.commanded, func(c wire.ModelCommand) bool { return c.Op == wire.AddShape && c.Shape == "7" }) {
		t.Errorf("once it is loaded: %+v", b.commanded)
	}
}
