package sched

import (
	"math"
	"testing"
	"time"

	"downbeat.dev/core/profile"
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

// TestBurstsMakeACrowd: where requests come in bursts, 1.25 models for each GPU are enough for a request to take an idle
// one at once, though batches may be late by many turns: a burst that is over brings nothing to wait for.
func TestBurstsMakeACrowd(t *testing.T) {
	for _, c := range []struct {
		name     string
		models   int
		together int // requests of one model that come in one moment
		want     bool
	}{
		{"5 models on 4 GPUs, 10 requests at a time", 5, 10, true},
		{"5 models on 4 GPUs, one request at a time", 5, 1, false},
		{"4 models on 4 GPUs, 10 requests at a time", 4, 10, false},
	} {
		s := crowdOf(t, 4, c.models, time.Millisecond, 4*time.Millisecond)
		now := bringBursts(t, s, c.models, c.together)
		if got := starts(t, s, now.Add(300*ms)); got != c.want {
			t.Errorf("%s: the request started at once: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestWhoGainsLittleDoesNotWaitForBursts: on any number of GPUs, a request of a burst starts at once if no model's batches
// save much. It waits if arrivals are even, or if one model batches well, or if a family shares the GPUs.
func TestWhoGainsLittleDoesNotWaitForBursts(t *testing.T) {
	for _, c := range []struct {
		name        string
		alpha, beta time.Duration
		other       time.Duration // β of model 1
		together    int
		family      bool
		want        bool
	}{
		{"bursts", 5 * time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond, 10, false, true},
		{"even arrivals", 5 * time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond, 1, false, false},
		{"strong batching", time.Millisecond, 5 * time.Millisecond, 5 * time.Millisecond, 10, false, false},
		{"one that batches well", 5 * time.Millisecond, 2 * time.Millisecond, 15 * time.Millisecond, 10, false, false},
		{"a family beside them", 5 * time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond, 10, true, false},
	} {
		s := crowdOf(t, 8, 4, c.alpha, c.beta)
		if err := s.ChangeModel(0, 1, Model{Profile: line(t, c.alpha, c.other, 64), SLO: 100 * ms, Rate: 10}); err != nil {
			t.Fatal(err)
		}
		if c.family {
			light, exact := line(t, time.Millisecond, time.Millisecond, 64), line(t, 5*time.Millisecond, 5*time.Millisecond, 64)
			family := Service{Homes: []uint32{0}, SLO: 100 * ms, Rate: 10, Variants: []Variant{
				{Accuracy: 0.7, Profiles: []*profile.Profile{light}}, {Accuracy: 0.9, Profiles: []*profile.Profile{exact}}}}
			if err := s.AddService(0, 100, family); err != nil {
				t.Fatal(err)
			}
		}
		now := bringBursts(t, s, 4, c.together)
		if got := starts(t, s, now.Add(300*ms)); got != c.want {
			t.Errorf("%s: the request started at once: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestWhereBatchesSaveNothingHeadsCompete: two requests that take as long together as apart do not go before one with an
// earlier deadline, though their batch would have to start sooner.
func TestWhereBatchesSaveNothingHeadsCompete(t *testing.T) {
	s := crowdOf(t, 1, 2, 20*time.Millisecond, 0)
	now := bringBursts(t, s, 2, 10)
	now = now.Add(300 * ms)
	if !starts(t, s, now) {
		t.Fatal("the first request waits")
	}
	first, _ := s.Actions()
	batch := first[0].ID

	for i, r := range []Request{
		{Model: 0, Deadline: now.Add(100 * ms)}, {Model: 0, Deadline: now.Add(100 * ms)}, {Model: 1, Deadline: now.Add(90 * ms)},
	} {
		r.ID = RequestID(1e12 + i)
		if why := s.Enqueue(now+1, r); why != 0 {
			t.Fatal(why)
		}
	}
	now = now.Add(20 * ms)
	if err := s.Complete(now, batch, 0, now); err != nil {
		t.Fatal(err)
	}
	if next, _ := s.Actions(); len(next) != 1 || next[0].Model != 1 {
		t.Errorf("the GPU went to %+v, want the request of model 1", next)
	}
}

// bringBursts brings 100 requests/s of each model, so many at a time, for two seconds, and ends with nothing queued.
func bringBursts(t *testing.T, s *Scheduler, models, together int) (now Time) {
	t.Helper()
	for id := RequestID(1); now < Time(2000*ms); now = now.Add(Duration(together) * 10 * ms / Duration(models)) {
		next := ModelID(int(id) / together % models)
		for range together {
			if why := s.Enqueue(now, Request{ID: id, Model: next, Deadline: now.Add(100 * ms)}); why != 0 {
				t.Fatal(why)
			}
			id++
		}
		endBatches(t, s, now)
	}

	// What a deadline leaves queued runs or goes within the SLO.
	for end := now.Add(110 * ms); now < end; now = now.Add(10 * ms) {
		endBatches(t, s, now)
	}
	return now
}

// endBatches takes what is in batches as done at once.
func endBatches(t *testing.T, s *Scheduler, now Time) {
	t.Helper()
	s.Advance(now)
	batches, _ := s.Actions()
	for _, b := range batches {
		if err := s.Complete(now, b.ID, b.GPU, now); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBurstiness: bursts are the short gaps that Poisson arrivals at the same rate do not have, and a few gaps tell
// nothing.
func TestBurstiness(t *testing.T) {
	for _, c := range []struct {
		name string
		gaps gaps
		rate float64 // requests/s
		want float64
	}{
		{"no gap", gaps{}, 100, 0},
		{"three short gaps", gaps{0: 3}, 0, 3.0 / 16},
		{"half of many", gaps{0: 500, 8: 500}, 0, 0.5},
		{"half of many, as Poisson arrivals have at 5,288 requests/s", gaps{0: 500, 1: 500}, 5288, 0},
		{"every 10 ms", gaps{7: 1000}, 100, 0},
	} {
		if got := c.gaps.burstiness(c.rate / 1e9); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%s: burstiness %.3f, want %.3f", c.name, got, c.want)
		}
	}
}

// TestWhatIsPastDoesNotRank: a queue too long to be served before its head's deadline counts with the batch that still
// can be, so that it does not take the GPU from a request that is in time.
func TestWhatIsPastDoesNotRank(t *testing.T) {
	s := crowdOf(t, 1, 3, 20*time.Millisecond, time.Millisecond)
	now := Time(50 * ms)
	if !starts(t, s, now) {
		t.Fatal("the first request waits")
	}
	first, _ := s.Actions()
	batch := first[0].ID

	// Four requests would take 81 ms of the 56 that are left, two may start in 15 ms, and the other model's must in 5.
	now = now.Add(20 * ms)
	for i, r := range []Request{
		{Model: 1, Deadline: now.Add(56 * ms)}, {Model: 1, Deadline: now.Add(56 * ms)}, {Model: 1, Deadline: now.Add(56 * ms)},
		{Model: 1, Deadline: now.Add(56 * ms)}, {Model: 2, Deadline: now.Add(26 * ms)},
	} {
		r.ID = RequestID(1000 + i)
		if why := s.Enqueue(now, r); why != 0 {
			t.Fatal(why)
		}
	}

	now = now.Add(ms)
	if err := s.Complete(now, batch, 0, now); err != nil {
		t.Fatal(err)
	}
	if next, _ := s.Actions(); len(next) != 1 || next[0].Model != 2 {
		t.Errorf("the GPU went to %+v, want the request of model 2", next)
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
