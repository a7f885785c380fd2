package accuracy

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/core/sim"
)

// TestHindsightDropsLess: who knows all arrivals finds a schedule of whole batches on whole devices, of the same answered
// requests, whose worst second loses less than ours. With made traces it must lose a fiftieth less. PROTEUS_DATA names a
// directory with Proteus's traces and profiles, which are then used in their place: the goal is 0.6 of Proteus's drop,
// and what the search finds is printed (some minutes).
func TestHindsightDropsLess(t *testing.T) {
	for _, s := range gatheredSettings(t) {
		h, m := runForHindsight(t, &s)
		answered := m.Total().Served
		second, before := h.worst(m)
		goal, steps := 0.98*before, 40_000
		if os.Getenv("PROTEUS_DATA") != "" {
			goal, steps = 0.6*proteusDrop(t, &s), 2_000_000
		}
		h.check(t, answered)
		was := h.describe(second)

		took, worst := h.search(m, goal, steps)
		h.check(t, answered)
		t.Logf("%s, %s: %d answers; the worst second loses %.3f %%, in hindsight %.3f %%, the goal is %.3f %%, after %d steps", s.Trace.Name, s.Zoo.Name, answered, 100*before, 100*worst, 100*goal, took)
		t.Logf("second %d, by family: points of the drop, mean batch, milliseconds from arrival to start%s\nin hindsight%s", second, was, h.describe(second))
		if worst > goal && os.Getenv("PROTEUS_DATA") == "" {
			t.Errorf("the worst second loses %v in hindsight, want at most %v", worst, goal)
		}
	}
}

// runForHindsight runs ours, and returns its schedule and its outcomes.
func runForHindsight(t *testing.T, s *Setting) (*hindsight, *Measured) {
	policies, err := scaling.Select("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.World()
	if err != nil {
		t.Fatal(err)
	}

	seconds := int(s.Trace.Span() / time.Second)
	h, m := newHindsight(w, len(s.Devices), seconds), recordOutcomes(w, seconds)
	note := w.Answered
	w.Answered = func(gpu, model, variant int32, start, finish sim.Time, requests []int32) {
		note(gpu, model, variant, start, finish, requests)
		b := batchInTime{model, variant, start, finish, slices.Clone(requests)}
		h.devices[gpu] = append(h.devices[gpu], b)
		h.count(&b, 1)
	}
	w.Run(policies[0].New(t.Context(), w, scaling.Settings{LoadTime: sim.Duration(s.LoadTime), Gap: s.Gap}))
	return h, m
}

// proteusDrop returns the largest drop over a second that bench/results has of Proteus.
func proteusDrop(t *testing.T, s *Setting) float64 {
	data := "published"
	if strings.Contains(s.Zoo.Name, "repaired") {
		data = "repaired"
	}
	for _, file := range []string{"f4", "f5"} {
		text, err := os.ReadFile("../results/accuracy/" + file + ".csv")
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if slices.Equal(r[:5], []string{s.Trace.Name, data, "proteus", "all", "largest_drop_1s"}) {
				drop, err := strconv.ParseFloat(r[5], 64)
				if err != nil {
					t.Fatal(err)
				}
				return drop
			}
		}
	}
	t.Fatalf("no result of Proteus on %s, %s", s.Trace.Name, data)
	return 0
}

// search improves the worst second until none loses more than the goal, or the steps are spent. It returns how many were
// taken, and what the worst second loses.
func (h *hindsight) search(m *Measured, goal float64, steps int) (took int, worst float64) {
	for i := range h.goal {
		h.goal[i] = goal * float64(m.Seconds[i].Served)
	}
	for second, drop := h.worst(m); ; second, drop = h.worst(m) {
		if drop <= goal || took >= steps {
			return took, drop
		}

		// After many steps for one second another may be the worst.
		putBack := h.cut(second)
		for until := took + 20_000; took < until && h.lost[second] > h.goal[second]; took++ {
			h.improve(second)
		}
		putBack()
	}
}

// worst returns the second that loses the largest share, and that share.
func (h *hindsight) worst(m *Measured) (second int, drop float64) {
	for i, x := range h.lost {
		if share := x / float64(max(1, m.Seconds[i].Served)); share > drop {
			second, drop = i, share
		}
	}
	return second, drop
}

// describe says how a second's requests are answered, by family.
func (h *hindsight) describe(second int) string {
	type sums struct{ requests, batches, lost, waited float64 }
	all, total := make([]sums, len(h.w.Models)), 0.0
	for _, batches := range h.devices {
		for i := range batches {
			b := &batches[i]
			x, size := &all[b.model], float64(len(b.requests))
			for _, r := range b.requests {
				if h.secondOf(r) == second {
					x.requests++
					x.batches += 1 / size
					x.lost += 1 - h.w.Models[b.model].Variants[b.variant].Accuracy
					x.waited += float64(b.start-sim.Time(h.w.Arrivals[r].At)) / 1e6
					total++
				}
			}
		}
	}

	var out strings.Builder
	for f, x := range all {
		if x.requests > 0 {
			fmt.Fprintf(&out, "; %s %.3f, %.1f, %.0f", h.w.Models[f].Name, 100*x.lost/total, x.requests/x.batches, x.waited/x.requests)
		}
	}
	return out.String()
}

// check finds what is wrong with the schedule: it must answer as many requests as it began with, each once, in time, on a
// device that is free.
func (h *hindsight) check(t *testing.T, answered int) {
	seen := make([]bool, len(h.w.Arrivals))
	for d, all := range h.devices {
		for i, b := range all {
			m := &h.w.Models[b.model]
			took := sim.Time(m.Variants[b.variant].Profiles[h.w.Kind(int32(d))].Exec(len(b.requests)))
			if b.end != b.start+took || i > 0 && b.start < all[i-1].end {
				t.Fatalf("device %d: a batch of %d from %v to %v, which takes %v, after one that ends at %v", d, len(b.requests), b.start, b.end, took, all[max(0, i-1)].end)
			}
			for _, r := range b.requests {
				a := h.w.Arrivals[r]
				if int32(a.Model) != b.model || sim.Time(a.At) > b.start || b.end > h.w.Deadline(r) || seen[r] {
					t.Fatalf("request %d of model %d, which came at %v, is answered from %v to %v by model %d; again: %v", r, a.Model, a.At, b.start, b.end, b.model, seen[r])
				}
				seen[r] = true
				answered--
			}
		}
	}
	if answered != 0 {
		t.Fatalf("%d requests have no answer", answered)
	}
}
