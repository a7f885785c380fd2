package frontend

import (
	"testing"
	"time"

	"downbeat.dev/core/model"
)

func info(name, version string, ready bool) model.Info {
	return model.Info{Name: name, Version: version, Ready: ready}
}

// TestAnnouncementsAddUp shows that within a session an announcement contains only changes, that the first one of a
// session removes the models that it does not name, and that the later of two announcements of a model holds.
func TestAnnouncementsAddUp(t *testing.T) {
	table, _ := newModelTable([]model.Info{info("a", "1", true), info("b", "1", true)}, nil, 10, true)
	table, _ = newModelTable([]model.Info{info("b", "1", true), info("b", "1", false)}, table, 20, false)
	a, b := table.byName[modelName{"a", "1"}], table.byName[modelName{"b", "1"}]
	if len(table.all) != 2 || !a.Ready || a.lostAt != 0 || b.Ready || b.idleAt != 20 || b.lostAt != 0 {
		t.Errorf("after news of b: %+v, %+v", a, b)
	}
	table, _ = newModelTable([]model.Info{info("b", "1", false)}, table, 30, true)
	a, b = table.byName[modelName{"a", ""}], table.byName[modelName{"b", ""}]
	if len(table.all) != 2 || a.Ready || a.lostAt != 30 || b.lostAt != 0 || b.idleAt != 20 {
		t.Errorf("after a new session without a: %+v, %+v", a, b)
	}
	table, _ = newModelTable([]model.Info{info("a", "1", true)}, table, 40, false)
	if a = table.byName[modelName{"a", ""}]; !a.Ready || a.lostAt != 0 || a.idleAt != 0 {
		t.Errorf("after its return: %+v", a)
	}
}

// TestARefusedFamilyIsNotAsked shows that requests for a family that the scheduler may not serve any more end with its
// reason: its tensors are known from before, and the scheduler would call its id unknown. A version of a model is asked
// for, since the newest may take its requests.
func TestARefusedFamilyIsNotAsked(t *testing.T) {
	x := []model.Tensor{{Name: "x", Datatype: model.FP32, Shape: []int64{4}}}
	served := func(name, version string) model.Info {
		return model.Info{Name: name, Version: version, Ready: true, Inputs: x, Outputs: x}
	}
	refused := func(name, version, why string) model.Info {
		return model.Info{Name: name, Version: version, Reason: why}
	}
	table, _ := newModelTable([]model.Info{served("f", ""), served("m", "1")}, nil, 10, true)
	table, _ = newModelTable([]model.Info{refused("f", "", model.BelowFloor+"0.99: the best variant has 0.9"), refused("m", "1", "its file is gone")}, table, 20, true)
	f, m := table.byName[modelName{"f", ""}], table.byName[modelName{"m", "1"}]
	if len(f.Inputs) == 0 || !f.isRefused() || m.isRefused() {
		t.Errorf("refused are the family (%d inputs): %v, the version: %v", len(f.Inputs), f.isRefused(), m.isRefused())
	}
	want := `model "f": rejected: accuracy_floor: accuracy floor 0.99: the best variant has 0.9`
	if err := f.refusal(); err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestForgottenModels shows that an id without a name removes the model that had it in this session, and no other,
// and that lost models are not kept forever.
func TestForgottenModels(t *testing.T) {
	numbered := func(name string, id uint32) model.Info {
		return model.Info{Name: name, Version: "1", ID: id, Ready: true}
	}
	table, _ := newModelTable([]model.Info{numbered("a", 0), numbered("b", 1)}, nil, 10, true)
	table, _ = newModelTable([]model.Info{{ID: 1}}, table, 20, false)
	if len(table.all) != 1 || table.byName[modelName{"b", ""}] != nil || table.byName[modelName{"a", ""}] == nil {
		t.Fatalf("b was forgotten: %+v", table.byName)
	}
	table, _ = newModelTable([]model.Info{numbered("c", 1)}, table, 30, false)
	table, _ = newModelTable([]model.Info{numbered("d", 0)}, table, 40, true) // another scheduler's id 0
	table, _ = newModelTable([]model.Info{{ID: 1}}, table, 50, false)
	if a, c := table.byName[modelName{"a", "1"}], table.byName[modelName{"c", "1"}]; a == nil || c == nil || len(table.all) != 3 {
		t.Fatalf("a and c may come back: %+v", table.byName)
	}
	table, _ = newModelTable(nil, table, 41+lostMax, false)
	if len(table.all) != 1 || table.byName[modelName{"d", ""}] == nil {
		t.Errorf("after an hour: %+v", table.byName)
	}
}

// TestReadyByName shows that a client waits for a model while a version may still come, but not forever.
func TestReadyByName(t *testing.T) {
	minute := int64(time.Minute)
	for name, tc := range map[string]struct {
		infos []model.Info
		at    int64
		want  bool
	}{
		"none":           {nil, 2, false},
		"one":            {[]model.Info{info("a", "1", true)}, 2, true},
		"old version":    {[]model.Info{info("a", "1", false), info("a", "2", true)}, 2, true},
		"awaited":        {[]model.Info{info("a", "1", true), info("b", "1", false)}, 2, false},
		"withdrawn":      {[]model.Info{info("a", "1", true), info("b", "1", false)}, 2 * minute, true},
		"all withdrawn":  {[]model.Info{info("b", "1", false)}, 2 * minute, false},
		"nothing at all": {[]model.Info{info("b", "1", false)}, 2, false},
	} {
		table, _ := newModelTable(tc.infos, nil, 1, true)
		if got := allReady(table.all, tc.at); got != tc.want {
			t.Errorf("%s: ready %v, want %v", name, got, tc.want)
		}
	}
}
