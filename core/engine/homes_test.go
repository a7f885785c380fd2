package engine

import (
	"testing"
	"time"

	"downbeat.dev/core/sched"
)

// steadily requests a model every interval for some time. It returns the number of requests; their ids follow last.
func (s *stage) steadily(f *front, model string, last uint64, every, span sched.Time) uint64 {
	for end := s.clock.now + span; s.clock.now < end; {
		last++
		f.ask(last, model, 50*ms)
		s.run(s.clock.now + every)
	}
	return last
}

// served returns how many of the requests from first to last ended with an output.
func (s *stage) served(first, last uint64) (n int) {
	for id := first; id <= last; id++ {
		if len(s.ends[id]) == 1 && s.ends[id][0] == "output" {
			n++
		}
	}
	return n
}

// TestMixedRepositoriesKeepTheirCapacity: backends are upgraded one by one to a repository with one more model, and
// get another kind of GPU, while the load needs four fifths of all. Models that every backend has are served by all.
func TestMixedRepositoriesKeepTheirCapacity(t *testing.T) {
	s := newStage(t, Options{})
	names := []string{"a", "b", "c", "d"}
	all := map[string]*emulated{}
	for _, name := range names {
		all[name] = s.mustBackend(hello(name, 1, slope, "cap", "other"))
	}
	slower := make([]time.Duration, len(slope))
	for i := range slope {
		slower[i] = slope[i] * 13 / 10
	}

	// Four GPUs with batches of 8 in 12 ms serve at most 2,667 requests/s.
	f := s.frontend()
	last := s.steadily(f, "cap", 0, ms/2, 2000*ms)
	for i, name := range names {
		all[name].Close()
		profile := slope
		if i%2 == 1 {
			profile = slower
		}
		all[name] = s.mustBackend(hello(name, 1, profile, "cap", "other", "new"))
		last = s.steadily(f, "cap", last, ms/2, 1000*ms)
	}

	s.run(s.clock.now + 200*ms)
	if n := s.served(1, last); float64(n) < 0.995*float64(last) {
		t.Errorf("%d of %d requests were served", n, last)
	}
	if st := s.e.Stats(); len(st.Load) != 2 || st.Load[0].Models != 3 || st.Load[1].Models != 3 {
		t.Errorf("sub-clusters %+v, want one of each kind with three models", st.Load)
	}
}

// TestWhatWasLearnedSurvivesChanges shows that the measured rate of a model stays when GPUs of another kind and of
// another repository join and leave, and when its only home changes.
func TestWhatWasLearnedSurvivesChanges(t *testing.T) {
	s := newStage(t, Options{})
	first := s.mustBackend(hello("first", 1, slope, "m"))
	f := s.frontend()
	last := s.steadily(f, "m", 0, 2*ms, 2000*ms)
	rate := func() float64 { return s.e.Learned()[0].Rate }
	before := rate()
	if before < 400 || before > 600 {
		t.Fatalf("500 requests/s are estimated as %v", before)
	}

	slower := make([]time.Duration, len(slope))
	for i := range slope {
		slower[i] = 2 * slope[i]
	}
	second := s.mustBackend(hello("second", 1, slower, "m"))
	third := s.mustBackend(hello("third", 1, slope, "m", "n"))
	first.Close()
	second.Close()
	if got := rate(); got != before {
		t.Errorf("the rate is %v after changes, it was %v", got, before)
	}
	s.run(s.clock.now + 200*ms)
	f.ask(last+1, "m", 50*ms)
	s.run(s.clock.now + 100*ms)
	s.ended(last+1, "output")
	third.Close()
}
