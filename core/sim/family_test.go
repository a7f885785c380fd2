package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// scripted is a Server that follows a test's instructions when requests arrive, and records when GPUs are done.
type scripted struct {
	arrive func(now Time, r int32)
	done   []Time
}

func (s *scripted) Arrive(now Time, r int32, model int32) { s.arrive(now, r) }
func (s *scripted) Done(now Time, gpu int32)              { s.done = append(s.done, now) }
func (s *scripted) Wake(now Time)                         {}
func (s *scripted) NextWake() Time                        { return sched.Never }

func mustProfile(t *testing.T, d time.Duration) *profile.Profile {
	t.Helper()
	p, err := profile.New([]time.Duration{d})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFamilyOnKinds shows that a variant takes the time of the GPU's kind, that its answer is reported with the
// variant, and that a load occupies its GPU.
func TestFamilyOnKinds(t *testing.T) {
	slow, fast := mustProfile(t, 30*time.Millisecond), mustProfile(t, 10*time.Millisecond)
	w := &World{
		GPUs: 2, Kinds: []uint8{0, 1},
		Models: []Model{{Name: "f", SLO: 25e6, Variants: []Variant{
			{Name: "light", Accuracy: 0.8, Profiles: []*profile.Profile{slow, fast}},
			{Name: "gpu only", Accuracy: 1, Profiles: []*profile.Profile{nil, fast}},
		}}},
		Arrivals: []arrivals.Arrival{{At: 0}, {At: 0}, {At: 1e6}},
	}
	var variants []int32
	w.Answered = func(gpu, model, variant int32, start, finish Time, requests []int32) {
		variants = append(variants, variant)
	}
	outcomes := make(map[int32]Outcome)
	w.Ended = func(r int32, o Outcome, at Time) { outcomes[r] = o }

	s := &scripted{}
	s.arrive = func(now Time, r int32) {
		switch r {
		case 0:
			w.StartVariant(now, 0, 0, 0, []int32{r}) // 30 ms on kind 0, so late
		case 1:
			w.StartVariant(now, 1, 0, 1, []int32{r}) // 10 ms on kind 1
			w.Load(1, 5e6)
		case 2:
			if w.FreeAt(1) != 15e6 {
				t.Errorf("GPU 1 is free at %d, want 15 ms: after its batch and the load", w.FreeAt(1))
			}
			w.StartVariant(w.FreeAt(1), 1, 0, 0, []int32{r})
		}
	}
	w.Run(s)

	if outcomes[0] != Late || outcomes[1] != Served || outcomes[2] != Served || !slices.Equal(variants, []int32{0, 1, 0}) {
		t.Errorf("outcomes %v, variants %v", outcomes, variants)
	}
	defer func() {
		if why := fmt.Sprint(recover()); !strings.Contains(why, "does not run on kind 0") {
			t.Errorf("a variant ran on a kind that it has no profile for: %s", why)
		}
	}()
	w.StartVariant(w.FreeAt(0), 0, 0, 1, []int32{0})
}
