package engine

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestPlansCountTheLoadTimesThatBackendsTell: a plan counts the load time of a model that was loaded, or only measured,
// before the session began. Later reports and offers replace the time, and the largest of all backends counts.
func TestPlansCountTheLoadTimesThatBackendsTell(t *testing.T) {
	s := newStage(t, Options{})
	h := hello("a", 1, slope, "loaded", "measured", "neither", "absurd", "negative")
	h.Version = wire.Version
	for k, load := range []time.Duration{3 * time.Second, 200 * time.Millisecond, 0, 1 << 62, -1} {
		h.Models[k].Load, h.Models[k].Loaded = load, []bool{k != 1}
	}
	b := s.mustBackend(h)
	other := hello("b", 1, slope, "loaded")
	other.Version, other.Models[0].Load = wire.Version, time.Second
	s.mustBackend(other)

	check := func(when string, want ...time.Duration) {
		t.Helper()
		var got []time.Duration
		if err := s.e.runInRegistry(func() {
			for _, m := range s.e.reg.viewPlacement().Models {
				got = append(got, m.Load)
			}
		}); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: plans count %v, %v; want %v", when, got, err, want)
		}
	}
	check("at the start", 3*time.Second, 200*time.Millisecond, time.Second, 10*time.Minute, time.Second)

	// A report without a time, as of a GPU that had the model, leaves the known one.
	report := func(model uint32, load, warmUp time.Duration) wire.PlacementReport {
		return wire.PlacementReport{Model: model, State: wire.Loaded, Load: int64(load), WarmUp: int64(warmUp)}
	}
	b.Report([]wire.PlacementReport{report(0, 0, 0), report(1, 300*time.Millisecond, 100*time.Millisecond)})
	check("after a load", 3*time.Second, 400*time.Millisecond, time.Second, 10*time.Minute, time.Second)

	offer := func(number uint32, load time.Duration) wire.Loadable {
		m := b.hello.Models[number]
		m.Load = load
		return wire.Loadable{Number: number, Model: m}
	}
	b.Offer([]wire.Loadable{offer(0, 5*time.Second), offer(1, 0)})
	check("after an offer", 5*time.Second, 400*time.Millisecond, time.Second, 10*time.Minute, time.Second)
}
