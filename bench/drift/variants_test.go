package drift

import (
	"testing"
	"time"
)

// TestSpaceDividedEvenly: of two unlike jobs the larger one ends in time only where space is divided by need.
func TestSpaceDividedEvenly(t *testing.T) {
	s := DefaultSetting()
	byNeed, err := serveApart(false)(s, wholeNetworks)
	if err != nil {
		t.Fatal(err)
	}
	evenly, err := serveApart(true)(s, wholeNetworks)
	if err != nil {
		t.Fatal(err)
	}
	if byNeed.finish < 0.99 || evenly.finish > byNeed.finish-0.05 {
		t.Errorf("by need %+v, evenly %+v", byNeed, evenly)
	}

	if share := divideSpace([2]int{32, 0}, true); share != [2]float64{1, 0} {
		t.Errorf("a job alone has %v of the space", share)
	}
	if share := divideSpace([2]int{64, 32}, false); share[0] < 0.6 || share[0]+share[1] != 1 {
		t.Errorf("by need %v", share)
	}
	if took := jobTime(33); took != answerTime(17)+answerTime(16) {
		t.Errorf("33 requests take %v", took)
	}
}

// TestMemoryVariants: requests that run on their own copy more parameters, finish less and leave less time for training.
func TestMemoryVariants(t *testing.T) {
	s := defaultMemory(DefaultSetting())
	s.directory, s.periods, s.frames, s.resident, s.period = "../../models", 2, 300, 0.3, 300*time.Millisecond
	whole, err := simulateMemory(s)
	if err != nil {
		t.Fatal(err)
	}
	s.apart = true
	apart, err := simulateMemory(s)
	if err != nil {
		t.Fatal(err)
	}
	s.apart, s.byAge = false, true
	byAge, err := simulateMemory(s)
	if err != nil {
		t.Fatal(err)
	}
	if apart.g.loads <= whole.g.loads || apart.finished >= whole.finished {
		t.Errorf("apart %d copies and %d frames, together %d and %d", apart.g.loads, apart.finished, whole.g.loads, whole.finished)
	}
	if byAge.g.loads == whole.g.loads {
		t.Errorf("%d copies in either order of eviction", byAge.g.loads)
	}

	// All of a batch's requests together take the batch's time.
	if d := apart.g.computing.Seconds()/float64(apart.finished) - whole.g.computing.Seconds()/float64(whole.finished); d > 1e-3 || d < -1e-3 {
		t.Errorf("computing of a frame differs by %v s", d)
	}
}

// TestFloors: A_m is the step below the first accuracy, and 95 % at most.
func TestFloors(t *testing.T) {
	for accuracy, want := range map[float64]float64{0.984: 0.95, 0.947: 0.9, 0.81: 0.8} {
		if got := floorOf(accuracy); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("first accuracy %v: A_m %v, want %v", accuracy, got, want)
		}
	}
}
