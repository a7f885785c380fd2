package drift

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
)

// TestSessions: jobs of the paper's 5 ms serve half where a batch of any size takes 5 ms; longer ones serve everything, and
// have less time left for training than one queue leaves idle.
func TestSessions(t *testing.T) {
	s := DefaultSetting()
	requests := s.requests(arrivals.Even(2))
	if paper := serveSessions(requests, 5*time.Millisecond, float64(s.GPUs), wholeNetworks); paper.finish > 0.7 {
		t.Errorf("sessions of 5 ms: %+v", paper)
	}

	best := simulateSessions(s, wholeNetworks)
	queue, err := simulateServing(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if best.finish < 0.99 || best.training <= 0 || best.training >= queue.idle*float64(s.GPUs) {
		t.Errorf("the best sessions: %+v; one queue: %+v", best, queue)
	}
}

func TestJobs(t *testing.T) {
	for _, c := range []struct {
		requests [2]int
		budget   time.Duration
		answered int
	}{
		{[2]int{}, time.Second, 0},
		{[2]int{32, 1}, answerTime(32) + answerTime(1), 33},
		{[2]int{32, 1}, answerTime(32) + answerTime(1) - 1, 32},
		{[2]int{33, 0}, time.Second, 33},
	} {
		answered, left := runJob(c.requests, c.budget, wholeNetworks)
		if answered != c.answered || left < 0 {
			t.Errorf("%v in %v: %d answered, %v left, want %d", c.requests, c.budget, answered, left, c.answered)
		}
	}

	// 33 requests take least in two batches of 17 or fewer, not in one of 32 and one of 1 counted as full.
	if b := bestBatch(33); b != 17 {
		t.Errorf("33 requests in batches of %d", b)
	}
}

// TestImpact: a loss among the farthest samples is found, and none where they are answered as the first ones were.
func TestImpact(t *testing.T) {
	order := make([]int, 1000)
	right := make([]bool, len(order))
	for i := range order {
		order[i], right[i] = i, i%10 != 0
	}
	m := &adainfModel{initial: 0.9}
	if d := m.findImpact(right, order); d != 0 {
		t.Errorf("no loss: %v", d)
	}
	for i := range 300 {
		right[i] = i%10 < 6
	}
	if d := m.findImpact(right, order); d < 0.25 || d > 0.35 {
		t.Errorf("three in ten lost: %v", d)
	}
}

func TestTheFarthestComeFirst(t *testing.T) {
	f := plan.Features{Dim: 2, Values: []float32{1, 0, 0, 1, 1, 1, -1, 0}}
	if order := byDistance(f, []float32{1, 0}); !slices.Equal(order, []int{3, 1, 2, 0}) {
		t.Errorf("%v", order)
	}
	if mean := meanFeature(f); mean[0] != 0.25 || mean[1] != 0.5 {
		t.Errorf("%v", mean)
	}
}
