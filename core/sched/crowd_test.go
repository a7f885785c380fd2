package sched

import (
	"testing"
	"time"
)

// crowdOf returns a Scheduler with GPUs and models that all have one profile, and an SLO of 100 ms.
func crowdOf(t *testing.T, gpus, models int, alpha, beta time.Duration) *Scheduler {
	t.Helper()
	s := New(Options{})
	for g := range gpus {
		if err := s.AddGPU(0, GPUID(g), 0); err != nil {
			t.Fatal(err)
		}
	}
	for m := range models {
		if err := s.AddModel(0, ModelID(m), Model{Profile: line(t, alpha, beta, 64), SLO: 100 * ms, Rate: 10}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// starts says whether a request of model 0 is in a batch as soon as it comes.
func starts(t *testing.T, s *Scheduler, now Time) bool {
	t.Helper()
	if why := s.Enqueue(now, Request{ID: RequestID(now), Model: 0, Deadline: now.Add(100 * ms)}); why != 0 {
		t.Fatalf("refused: %v", why)
	}
	batches, _ := s.Actions()
	return len(batches) > 0
}

// TestNobodyWaitsInACrowd: where many models share few GPUs a request takes an idle one at once; where they are few, or
// their batches may be late by long enough, it waits for others.
func TestNobodyWaitsInACrowd(t *testing.T) {
	for _, c := range []struct {
		name         string
		gpus, models int
		alpha, beta  time.Duration
		want         bool
	}{
		{"12 models on 4 GPUs", 4, 12, time.Millisecond, 20 * time.Millisecond, true},
		{"11 models on 4 GPUs", 4, 11, time.Millisecond, 20 * time.Millisecond, false},
		{"batches that may be late by four turns", 4, 12, 20 * time.Millisecond, time.Millisecond, false},
		{"40 models on 40 GPUs", 40, 40, time.Millisecond, 20 * time.Millisecond, false},
	} {
		s := crowdOf(t, c.gpus, c.models, c.alpha, c.beta)
		if got := starts(t, s, Time(50*ms)); got != c.want {
			t.Errorf("%s: the request started at once: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestACrowdEnds: models that go take their parts with them, and what is left waits again.
func TestACrowdEnds(t *testing.T) {
	s := crowdOf(t, 4, 12, time.Millisecond, 20*time.Millisecond)
	s.RemoveModel(0, 11)
	if starts(t, s, Time(50*ms)) {
		t.Error("11 models on 4 GPUs: a request started at once")
	}

	for m := range 11 {
		s.RemoveModel(Time(50*ms), ModelID(m))
	}
	if c := s.part.crowds[0]; c.own != (Crowd{}) {
		t.Errorf("after the last model %+v is left", c)
	}
}

// TestACrowdGoesByLatestStart: of candidates that all are ripe the one that must start first gets the GPU that
// becomes free, though it came last, and its rank follows what joins it.
func TestACrowdGoesByLatestStart(t *testing.T) {
	s := crowdOf(t, 1, 3, time.Millisecond, 20*time.Millisecond)
	now := Time(50 * ms)
	if !starts(t, s, now) {
		t.Fatal("the first request waits")
	}
	first, _ := s.Actions()
	batch := first[0].ID

	// Model 2 has the later deadline, but five requests: its batch takes longer and must start sooner.
	for i, r := range []Request{
		{Model: 1, Deadline: now.Add(100 * ms)},
		{Model: 2, Deadline: now.Add(102 * ms)}, {Model: 2, Deadline: now.Add(102 * ms)}, {Model: 2, Deadline: now.Add(102 * ms)},
		{Model: 2, Deadline: now.Add(102 * ms)}, {Model: 2, Deadline: now.Add(102 * ms)},
	} {
		r.ID = RequestID(1000 + i)
		if why := s.Enqueue(now+1, r); why != 0 {
			t.Fatal(why)
		}
	}

	if err := s.Complete(now.Add(21*ms), batch, 0, now.Add(21*ms)); err != nil {
		t.Fatal(err)
	}
	next, _ := s.Actions()
	if len(next) != 1 || next[0].Model != 2 || len(next[0].Requests) != 5 {
		t.Errorf("the GPU went to %+v, want five requests of model 2", next)
	}
}

// TestACrowdIsJudgedByAllPartitions: models that are spread over partitions are one crowd, though each partition has
// too few of them, until enough of them have gone.
func TestACrowdIsJudgedByAllPartitions(t *testing.T) {
	parts := []*Partition{NewPartition(Options{}), NewPartition(Options{Number: 1})}
	for m := range 12 {
		p := parts[m%2]
		if err := p.AddModel(0, ModelID(m), Model{Profile: line(t, time.Millisecond, 20*time.Millisecond, 64), SLO: 100 * ms, Rate: 10}); err != nil {
			t.Fatal(err)
		}
	}

	tell := func() {
		var sums []Crowd
		for _, p := range parts {
			sums = p.AddCrowds(sums)
		}
		for _, p := range parts {
			p.SetCrowds(sums)
		}
	}
	check := func(when string, want bool) {
		t.Helper()
		for k, p := range parts {
			if got := p.crowds[0].dense; got != want {
				t.Errorf("%s: partition %d takes it for crowded: %v, want %v", when, k, got, want)
			}
		}
	}

	for _, p := range parts {
		p.SetGPUs(0, 0, 4)
	}
	check("before the partitions know of one another", false)
	tell()
	check("12 models on 4 GPUs", true)

	// It does not grow by being told again, and each partition sees at once what changes in itself.
	tell()
	check("told twice", true)
	parts[0].RemoveModel(0, 10)
	if parts[0].crowds[0].dense {
		t.Error("11 models on 4 GPUs: the partition that lost one takes it for crowded")
	}
	tell()
	check("11 models on 4 GPUs", false)

	for _, p := range parts {
		p.SetGPUs(0, 0, 3)
	}
	check("11 models on 3 GPUs", true)
}
