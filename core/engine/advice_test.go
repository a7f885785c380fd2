package engine

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
)

// TestStatsNamesAreUnique shows that each label of a metric names one thing, even if two backends have one name, or
// several sub-clusters have none.
func TestStatsNamesAreUnique(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 2, slope, "x"))
	twin := s.mustBackend(hello("b", 1, slope, "x"))
	s.mustBackend(hello("c", 1, slope, "x", "y"))

	check := func(gpus, clusters int) {
		t.Helper()
		seen := map[string]bool{}
		st := s.e.Stats()
		for _, g := range st.GPUs {
			seen["gpu "+g.Name] = true
		}
		for _, l := range st.Load {
			seen["sub-cluster "+l.SubCluster] = true
		}
		if len(st.GPUs) != gpus || len(st.Load) != clusters || len(seen) != gpus+clusters {
			t.Errorf("%d GPUs and %d sub-clusters have the names %v", len(st.GPUs), len(st.Load), seen)
		}
	}
	check(4, 2)
	twin.Close()
	s.mustBackend(hello("b", 1, slope, "x"))
	check(4, 2)
}

// TestOperatorIsAdvised shows that GPUs that serve nothing are reported once, each time that this begins. A GPU whose
// models other GPUs also have serves like them.
func TestOperatorIsAdvised(t *testing.T) {
	var log logtest.Buffer
	s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	said := func() int { return strings.Count(log.String(), "serve no model") }

	s.mustBackend(hello("old", 1, slope, "x"))
	s.mustBackend(hello("upgraded", 1, slope, "x", "x2"))
	rival := hello("rival", 1, slope, "x")
	rival.SubCluster = "elsewhere"
	s.mustBackend(rival)
	if said() > 0 {
		t.Errorf("all is well: %s", log.String())
	}

	empty := hello("empty", 2, slope, "x")
	empty.Models[0].Loaded = []bool{false, false}
	b := s.mustBackend(empty)
	s.mustBackend(hello("another", 1, slope, "x"))
	if said() != 1 || !strings.Contains(log.String(), "backends=[empty]") {
		t.Errorf("GPUs that serve nothing were said %d times: %s", said(), log.String())
	}
	b.Report([]wire.PlacementReport{{GPU: 0, Model: 0, State: wire.Loaded}, {GPU: 1, Model: 0, State: wire.Loaded}})
	b.Report([]wire.PlacementReport{{GPU: 1, Model: 0, State: wire.Unloaded}})
	if said() != 2 {
		t.Errorf("GPUs that serve nothing again were said %d times: %s", said(), log.String())
	}
}

// TestSlowJoinerIsSaid shows that a backend whose profile is more than twice that of the other GPUs of its kind is
// reported once, with its name and its models. Other backends are not reported, nor is one that comes alone.
func TestSlowJoinerIsSaid(t *testing.T) {
	var log logtest.Buffer
	s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})

	of := func(name, kind string, gpus int, factor time.Duration) {
		table := slices.Clone(slope)
		for k := 3; k < len(table); k++ {
			table[k] *= factor
		}
		h := hello(name, gpus, table, "x", "y")
		h.Models[1].Profile = slope
		for range gpus {
			h.Details = append(h.Details, wire.GPUDetail{Kind: kind})
		}
		s.mustBackend(h)
	}
	of("first", "h200", 1, 3)
	of("other kind", "h100", 1, 1)
	of("twice", "h100", 1, 2)
	if strings.Contains(log.String(), "more than twice") {
		t.Errorf("all is well: %s", log.String())
	}

	// The joiner is the larger part of its sub-cluster here, and is still slow.
	of("slow", "h100", 4, 3)
	if said := log.String(); strings.Count(said, "more than twice") != 1 || !strings.Contains(said, "backend=slow") || !strings.Contains(said, "models=[x]") {
		t.Errorf("a slow joiner: %s", said)
	}
}
