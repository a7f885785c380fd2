package sched

import (
	"math"
	"strings"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// TestMillionRequestsWithoutGPU: a model without a GPU refuses requests. A million requests that were queued when its
// GPU was removed end by their deadlines, each once and by id, and their memory is reused.
func TestMillionRequestsWithoutGPU(t *testing.T) {
	const n = 1_000_000
	s := New(Options{})
	p := line(t, time.Millisecond, 5*time.Millisecond, 4)
	if err := s.AddModel(0, 0, Model{Profile: p, SLO: 20 * ms, QueueMax: n}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if why := s.Enqueue(0, Request{ID: RequestID(i), Deadline: Time(1000 * ms)}); why != vocabulary.NoBackend {
			t.Fatalf("request %d: %v, want %v", i, why, vocabulary.NoBackend)
		}
	}
	if err := s.AddGPU(0, 0, 0); err != nil {
		t.Fatal(err)
	}
	sent, refused := 0, 0
	for i := range n + 100 {
		why := s.Enqueue(0, Request{ID: RequestID(i), Deadline: Time(1000 * ms).Add(Duration(i))})
		batches, drops := s.Actions()
		for _, b := range batches {
			sent += len(b.Requests)
		}
		if len(drops) > 0 || why != vocabulary.ReasonNone && why != vocabulary.QueueFull {
			t.Fatalf("request %d: %v, drops %v", i, why, drops)
		}
		if why == vocabulary.QueueFull {
			refused++
		}
	}
	if q := s.Queued(0); q != n || sent+refused != 100 {
		t.Fatalf("%d queued, %d in batches, %d refused", q, sent, refused)
	}
	s.RemoveGPU(0, 0)
	ended, count := make([]bool, n+100), 0
	for at := s.NextWake(); at < Time(2000*ms); at = s.NextWake() {
		s.Advance(at)
		_, drops := s.Actions()
		for _, d := range drops {
			if d.Reason != vocabulary.NoBackend || ended[d.ID] {
				t.Fatalf("drop %+v, ended before: %v", d, ended[d.ID])
			}
			ended[d.ID] = true
			count++
		}
	}
	if count != n || s.Queued(0) != 0 {
		t.Fatalf("%d ended, %d are queued", count, s.Queued(0))
	}
}

// TestAddModelNamesWhatIsWrong: the error has field, value and range.
func TestAddModelNamesWhatIsWrong(t *testing.T) {
	s := New(Options{})
	good := Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 4), SLO: 20 * ms}
	for want, change := range map[string]func(*ModelID, *Model){
		"model 1048576: want an id below 1048576":                   func(id *ModelID, _ *Model) { *id = IDLimit },
		"model 1: profile is missing":                               func(_ *ModelID, m *Model) { m.Profile = nil },
		"model 1: sub-cluster 65536, want one below 65536":          func(_ *ModelID, m *Model) { m.SubCluster = SubClusterLimit },
		"model 1: rate NaN, want 0 to 1e+09 requests/s":             func(_ *ModelID, m *Model) { m.Rate = math.NaN() },
		"model 1: rate -1, want 0":                                  func(_ *ModelID, m *Model) { m.Rate = -1 },
		"model 1: rate +Inf, want 0":                                func(_ *ModelID, m *Model) { m.Rate = math.Inf(1) },
		"model 1: queue maximum -1, want 0 to 1073741824":           func(_ *ModelID, m *Model) { m.QueueMax = -1 },
		"model 1: SLO 5999999 ns, want at least ℓ(1) = 6000000 ns":  func(_ *ModelID, m *Model) { m.SLO = 6*ms - 1 },
		"model 1: SLO 3600000000001 ns, want at least ℓ(1) = 60000": func(_ *ModelID, m *Model) { m.SLO = SLOLimit + 1 },
	} {
		id, m := ModelID(1), good
		change(&id, &m)
		if err := s.AddModel(0, id, m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %s", err, want)
		}
	}
	if err := s.AddGPU(0, 1, SubClusterLimit); err == nil || !strings.Contains(err.Error(), "gpu 1: sub-cluster 65536, want one below 65536") {
		t.Errorf("error %v", err)
	}
	if err := s.AddModel(0, 1, good); err != nil {
		t.Error(err)
	}
}

// TestOverloadsMemoryIsGivenBack: a queue that grew long frees its memory once its model has been idle, so that
// models overloaded one after the other share it. A short queue keeps its memory.
func TestOverloadsMemoryIsGivenBack(t *testing.T) {
	for n, want := range map[int]int{30_000: 0, 800: 1024} {
		p := NewPartition(Options{})
		if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 4), SLO: 20 * ms}); err != nil {
			t.Fatal(err)
		}
		p.SetGPUs(0, 0, 1)
		now := Time(0)
		for range 3 {
			for i := range n {
				if why := p.Enqueue(now, Request{ID: RequestID(i), Model: 1, Deadline: now.Add(20 * ms)}); why != vocabulary.ReasonNone {
					t.Fatal(why)
				}
			}
			for end := now.Add(3000 * ms); now < end; now = min(max(now, p.NextWake()), end) {
				p.Advance(now)
				p.Outputs().Reset()
			}
			if kept := len(p.models[0].q.buf); p.Queued(1) != 0 || kept != want {
				t.Errorf("after %d requests: %d queued, %d places kept, want none and %d", n, p.Queued(1), kept, want)
			}
		}
	}
}

// TestTimeGoesBack: in any call, an earlier now counts as the latest one, and is counted.
func TestTimeGoesBack(t *testing.T) {
	s := New(Options{})
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 1), SLO: 20 * ms}))
	must(s.AddGPU(0, 1, 0))
	s.Advance(Time(10 * ms))
	var early Time // the time given to all calls
	calls := []func(){
		func() { s.Advance(early) },
		func() {
			if why := s.Enqueue(early, Request{ID: 1, Model: 1, Deadline: Time(9 * ms)}); why != vocabulary.DeadlinePast {
				t.Errorf("a deadline that was past at the latest time: %v", why)
			}
		},
		func() { s.Enqueue(early, Request{ID: 2, Model: 1, Deadline: Time(30 * ms)}) },
		func() { s.Cancel(early, 1, 2, 0) },
		func() { s.SetNetworkDelay(early, 0, 0) },
		func() { must(s.AddModel(early, 2, Model{Profile: line(t, time.Millisecond, 0, 1), SLO: 20 * ms})) },
		func() { s.RemoveModel(early, 2) },
		func() { must(s.AddGPU(early, 2, 0)) },
	}
	for i, call := range calls {
		p, r := s.Stats()
		before := p.ClockBack + r.ClockBack
		call()
		if p, r = s.Stats(); p.ClockBack+r.ClockBack == before {
			t.Errorf("call %d: time went back, and nothing counted it", i)
		}
		batches, _ := s.Actions()
		for _, b := range batches {
			if b.ExecAt < Time(10*ms) {
				t.Errorf("call %d: batch %+v starts before the latest time", i, b)
			}
		}
	}
}

// TestGrantOfAnotherSubCluster: a model that moved to another sub-cluster while a grant was under way returns the
// GPU, because the new sub-cluster's profile need not hold there.
func TestGrantOfAnotherSubCluster(t *testing.T) {
	p := NewPartition(Options{})
	p.SetGPUs(0, 1, 1)
	p.SetGPUs(0, 2, 1)
	m := Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 1), SLO: 20 * ms, SubCluster: 1}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.AddModel(0, 7, m))
	p.RemoveModel(0, 7)
	m.SubCluster = 2
	must(p.AddModel(0, 7, m))
	if why := p.Enqueue(0, Request{ID: 1, Model: 7, Deadline: Time(20 * ms)}); why != vocabulary.ReasonNone {
		t.Fatal(why)
	}
	p.Outputs().Reset()
	p.Grant(0, Grant{Model: 7, SubCluster: 1, GPU: 3, Epoch: 9})
	o := p.Outputs()
	if len(o.Batches) != 0 || len(o.Frees) != 1 || o.Frees[0].Batch != 0 || o.Frees[0].Epoch != 9 || p.Queued(7) != 1 {
		t.Fatalf("%d batches, frees %+v, %d queued", len(o.Batches), o.Frees, p.Queued(7))
	}
}
