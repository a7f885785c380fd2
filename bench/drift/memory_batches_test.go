package drift

import (
	"strings"
	"testing"
	"time"
)

// TestBatchesPushParametersOut: with room for all nothing is copied in the second round, and a larger batch is never slower; with half of it
// large batches copy more than small ones of the same job have to, and one that does not fit is said so.
func TestBatchesPushParametersOut(t *testing.T) {
	s := defaultMemory(DefaultSetting())
	s.directory, s.apps = "../../models", 2
	whole, err := wholeMemory(s)
	if err != nil {
		t.Fatal(err)
	}

	try := func(batch int, share float64) batchesTime {
		s.batch = batch
		got, err := simulateBatches(s, int64(share*float64(whole)))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	before := time.Duration(0)
	for _, batch := range []int{64, 16, 4} {
		// What jobs put out lies beside what a batch is at work on.
		got := try(batch, 1.1)
		if !got.fits || got.copying != 0 || got.loaded != 0 || got.job < before {
			t.Errorf("batches of %d in all of the memory: %+v, want no copies and at least %v", batch, got, before)
		}
		before = got.job
	}

	// A batch of 64 has no room where one of 4 finds its parameters again.
	large, small := try(32, 0.6), try(4, 0.6)
	if !large.fits || !small.fits || large.loaded <= small.loaded || large.perBatch() <= small.perBatch() {
		t.Errorf("in 0.6 of the memory: %+v and %+v", large, small)
	}
	if got := try(64, 0.05); got.fits {
		t.Errorf("64 frames fit in a twentieth: %+v", got)
	}
}

// TestExitsAreLoadedAlone: an exit brings its own layers' parameters and those of the trunk before it, and its parent no head of an exit.
func TestExitsAreLoadedAlone(t *testing.T) {
	bytes := map[string]int64{}
	for _, name := range []string{"vehicle-l", "vehicle-l-exit1", "vehicle-l-exit2"} {
		n, err := openLayered("../../models", name, v100)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range n.params {
			bytes[name] += b
		}
	}
	// The executor takes so much for the whole network and its layers' alignment (decision 0215).
	if got := bytes["vehicle-l"]; got != 1273600 {
		t.Errorf("vehicle-l takes %d bytes, want 1,273,600", got)
	}
	if bytes["vehicle-l-exit1"] >= bytes["vehicle-l-exit2"] || bytes["vehicle-l-exit2"] >= bytes["vehicle-l"] {
		t.Errorf("%v, want that exits take less", bytes)
	}
	if _, err := openLayered("../../models", "person-l", v100); err == nil || !strings.Contains(err.Error(), "no recipe person-l") {
		t.Error(err)
	}
}
