package engine

import (
	"testing"

	"downbeat.dev/core/wire"
)

// TestStandbyLearns shows that an engine that received another's rates, margins and lateness plans like that one, and
// continues with its own measurements.
func TestStandbyLearns(t *testing.T) {
	leader := newStage(t, Options{Partitions: 2})
	f := leader.frontend()
	leader.mustBackend(hello("b", 2, slope, "m", "n"))
	for i := range uint64(2000) {
		f.Submit([]wire.Submit{{ID: i + 1, Model: f.models["m"].ID, Budget: 50e6}})
		leader.run(leader.clock.now + ms)
	}
	told := leader.e.Learned()
	if len(told) != 1 || told[0].Model != "m" || told[0].Rate < 800 || told[0].Rate > 1200 || told[0].Overrun < 0 {
		t.Fatalf("the leader has learned %+v", told)
	}

	standby := newStage(t, Options{Partitions: 2})
	standby.mustBackend(hello("b", 2, slope, "m", "n"))
	told[0].Overrun = 3e6
	standby.e.Learn(append(told, wire.Learned{Model: "unknown", Rate: 5}))
	got := standby.e.Learned()
	if len(got) != 1 || got[0] != told[0] {
		t.Errorf("the standby has learned %+v, want %+v", got, told)
	}
}
