package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestUnnamedKindsAreToldApartByProfiles: GPUs that name no kind are one sub-cluster if their profiles differ little,
// and two otherwise. In both cases the queue survives GPUs that come and go.
func TestUnnamedKindsAreToldApartByProfiles(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("fast", 1, []time.Duration{1e6, 2e6, 3e6, 4e6}, "m"))
	f := s.frontend()
	if f.models["m"].BatchMax != 4 {
		t.Errorf("alone: %+v", f.models["m"])
	}
	f.ask(1, "m", 50*ms)
	f.ask(2, "m", 50*ms)

	homes := func() string {
		text := ""
		for _, h := range s.e.reg.models[0].homes {
			text += fmt.Sprintf("%d%v", h.sub, h.table)
		}
		return text
	}
	b := s.mustBackend(hello("nearly as fast", 1, []time.Duration{1.1e6, 2e6, 3e6, 4.2e6}, "m"))
	if got := homes(); got != "1[1.1ms 2ms 3ms 4.2ms]" {
		t.Errorf("merged: %s", got)
	}
	c := s.mustBackend(hello("slow", 1, []time.Duration{2e6, 3e6}, "m"))
	if got := homes(); got != "1[1.1ms 2ms 3ms 4.2ms]2[2ms 3ms]" || f.models["m"].BatchMax != 4 {
		t.Errorf("two kinds: %s %+v", got, f.models["m"])
	}
	b.Close()
	if got := homes(); got != "1[1ms 2ms 3ms 4ms]2[2ms 3ms]" {
		t.Errorf("without the second: %s", got)
	}
	c.Close()
	if got := homes(); got != "1[1ms 2ms 3ms 4ms]" {
		t.Errorf("alone again: %s", got)
	}
	s.run(100 * ms)
	s.ended(1, "output")
	s.ended(2, "output")
}

// TestAKindIsOneSubClusterWhateverWasMeasured: two backends of one kind, one of them measured on a busy host, are one
// home, so their models are not placed ahead of time as with several kinds. Another kind is another home, even if it
// is as fast. So is the same kind under another name.
func TestAKindIsOneSubClusterWhateverWasMeasured(t *testing.T) {
	s := newStage(t, Options{})
	of := func(name, kind string, percent time.Duration) wire.BackendHello {
		h := hello(name, 1, slices.Clone(slope), "m")
		for k := range slope {
			h.Models[0].Profile[k] = slope[k] * percent / 100
		}
		h.Details = []wire.GPUDetail{{Kind: kind, Memory: 1 << 30}}
		return h
	}
	homes := func() []home { return s.e.reg.models[0].homes }

	s.mustBackend(of("quiet", "h200", 100))
	s.mustBackend(of("quiet too", "h200", 101))
	busy := s.mustBackend(of("busy", "h200", 140))
	if h := homes(); len(h) != 1 || h[0].table[7] != slope[7]*101*115/10000 || s.e.reg.models[0].chooses {
		t.Fatalf("one kind has the homes %v", h)
	}

	// A new measurement changes the profile of the plan, not the sub-cluster.
	m := busy.hello.Models[0]
	m.Profile = slope
	if sub := busy.gpus[0].sub; !busy.Offer([]wire.Loadable{{Model: m}}) || busy.gpus[0].sub != sub {
		t.Errorf("the GPU that was measured anew went from sub-cluster %d to %d", sub, busy.gpus[0].sub)
	}
	if h := homes(); len(h) != 1 || h[0].table[7] != slope[7]*101/100 {
		t.Errorf("measured anew: the homes %v", h)
	}

	s.mustBackend(of("other", "h100", 100))
	named := of("night", "h200", 100)
	named.SubCluster = "night"
	s.mustBackend(named)
	if h := homes(); len(h) != 3 {
		t.Errorf("another kind and another name: the homes %v", h)
	}
}

// TestSubClusters shows that backends without a sub-cluster name join those with the same models. A model of several
// sub-clusters is served by all of them, and its queue continues when one leaves.
func TestSubClusters(t *testing.T) {
	s := newStage(t, Options{Partitions: 3})
	ab := s.mustBackend(hello("ab", 2, slope, "a", "b"))
	bc := s.mustBackend(hello("bc", 1, slope, "b", "c"))
	f := s.frontend()
	if ab.gpus[0].sub == bc.gpus[0].sub || ab.gpus[0].sub != ab.gpus[1].sub || !f.models["a"].Ready || !f.models["b"].Ready || !f.models["c"].Ready {
		t.Fatalf("sub-clusters %d, %d, models %+v", ab.gpus[0].sub, bc.gpus[0].sub, f.models)
	}
	f.ask(1, "b", 40*ms)
	ab.Close()
	if f.models["a"].Ready || !f.models["b"].Ready {
		t.Errorf("after ab left: %+v", f.models)
	}
	f.ask(2, "c", 60*ms)
	s.run(100 * ms)
	s.ended(1, "output")
	s.ended(2, "output")
	if len(bc.batches) != 2 {
		t.Errorf("batches %v", bc.batches)
	}
}
