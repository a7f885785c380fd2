package sched

import (
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// TestPromptStartsAtOnceWhileDemandIsLow: with Prompt set a single request runs at once on an idle GPU; without it
// the request waits until little growth is expected.
func TestPromptStartsAtOnceWhileDemandIsLow(t *testing.T) {
	for _, tc := range []struct {
		prompt float64
		lo, hi Time // start of the batch
	}{{0.3, 0, 0}, {0, Time(73 * ms), Time(93 * ms)}} { // frontrun = 100 − ℓ(2) = 93 ms; 0.2/λ before
		s := New(Options{Prompt: tc.prompt})
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(s.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 16), SLO: 100 * ms, Rate: 10}))
		must(s.AddGPU(0, 1, 0))
		if why := s.Enqueue(0, Request{ID: 1, Model: 1, Deadline: Time(100 * ms)}); why != vocabulary.ReasonNone {
			t.Fatal(why)
		}
		batches, _ := s.Actions()
		for now := Time(0); len(batches) == 0; batches, _ = s.Actions() {
			if now = s.NextWake(); now == Never {
				t.Fatalf("prompt %v: the request was forgotten", tc.prompt)
			}
			s.Advance(now)
		}
		if at := batches[0].ExecAt; at < tc.lo || at > tc.hi {
			t.Errorf("prompt %v: the batch starts at %v, want %v to %v", tc.prompt, at, tc.lo, tc.hi)
		}
	}
}
