package engine

import (
	"fmt"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// tableOf returns a profile that no other number has.
func tableOf(number int) []time.Duration {
	table := make([]time.Duration, 8)
	for b := range table {
		table[b] = time.Duration(5e6 + 1e6*b + number)
	}
	return table
}

// TestProfilesAreShared: equal tables have one Profile, and Profiles out of use do not accumulate, whereas those in
// use survive.
func TestProfilesAreShared(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m", "n"))
	g := &s.e.reg
	used := g.models[0].homes[0].prof
	if used == nil || g.models[1].homes[0].prof != used {
		t.Errorf("two models of one table have profiles %p and %p, want one", used, g.models[1].homes[0].prof)
	}

	for i := range 10 * sweepLeast {
		p, err := g.profile(tableOf(i))
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := g.profile(tableOf(i)); again != p {
			t.Fatalf("table %d has profiles %p and %p, want one", i, p, again)
		}
	}
	if g.profiles.count > sweepLeast+1 {
		t.Errorf("%d profiles are kept, and one is used", g.profiles.count)
	}
	if p, _ := g.profile(slope); p != used {
		t.Errorf("the profile in use is %p, and a further model would get %p", used, p)
	}
	if p, err := g.profile(nil); p != nil || err == nil {
		t.Errorf("the profile of no table: %v, %v: want an error", p, err)
	}
}

// BenchmarkDifferentProfiles is a backend that joins with 4,000 models, none of which takes the time of another.
func BenchmarkDifferentProfiles(b *testing.B) {
	h := wire.BackendHello{Name: "b", GPUs: make([]string, 1)}
	for i := range 4000 {
		h.Models = append(h.Models, wire.BackendModel{Info: model.Info{Name: fmt.Sprint("m", i), Version: "1", SLO: 50e6}, Profile: tableOf(i)})
	}
	for b.Loop() {
		s := newStage(b, Options{})
		s.mustBackend(h)
	}
}
