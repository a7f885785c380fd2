package drift

import (
	"testing"

	"downbeat.dev/bench/median"
)

// TestMemoryTooSmall: with room for all parameters nothing is evicted; with less, copies cost time, and the parameters of inference are wanted last.
func TestMemoryTooSmall(t *testing.T) {
	s := defaultMemory(DefaultSetting())
	s.directory, s.periods, s.frames, s.resident = "../../models", 3, 200, 1
	whole, err := simulateMemory(s)
	if err != nil {
		t.Fatal(err)
	}
	s.resident = 0.3
	less, err := simulateMemory(s)
	if err != nil {
		t.Fatal(err)
	}

	sum := func(r *memoryRun) (n int) {
		for _, k := range r.g.evicted {
			n += k
		}
		return n
	}
	if sum(whole) != 0 || sum(less) == 0 || less.g.copying <= whole.g.copying {
		t.Errorf("%d and %d evictions, copies of %v and %v", sum(whole), sum(less), whole.g.copying, less.g.copying)
	}
	if less.steps == 0 || median.Percentile(less.g.reused[inferParameters], 50) <= median.Percentile(less.g.reused[trainParameters], 50) {
		t.Errorf("%d steps; parameters in inference are reused sooner than those in retraining", less.steps)
	}
}
