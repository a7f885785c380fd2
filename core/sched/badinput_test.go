package sched

import (
	"testing"
	"time"
)

// TestMillionRequestsWithoutGPU: a model without a GPU refuses requests; a million that were
// queued when its GPU went end by their deadlines, each once and named, and their memory is used
// again.
func TestMillionRequestsWithoutGPU(t *testing.T) {
	const n = 1_000_000
	s := New(Options{})
	p := line(t, time.Millisecond, 5*time.Millisecond, 4)
	if err := s.AddModel(0, 0, Model{Profile: p, SLO: 20 * ms, QueueMax: n}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if why := s.Enqueue(0, Request{ID: RequestID(i), Deadline: Time(1000 * ms)}); why != NoBackend {
			t.Fatalf("request %d: %v, want %v", i, why, NoBackend)
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
			sent += b.Size()
		}
		if len(drops) > 0 || why != ReasonNone && why != QueueFull {
			t.Fatalf("request %d: %v, drops %v", i, why, drops)
		}
		if why == QueueFull {
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
			if d.Reason != NoBackend || ended[d.ID] {
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

// TestGrantOfAnotherSubCluster: a model that moved to another sub-cluster while a grant was under
// way gives the GPU back; the new sub-cluster's profile need not hold there.
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
	if why := p.Enqueue(0, Request{ID: 1, Model: 7, Deadline: Time(20 * ms)}); why != ReasonNone {
		t.Fatal(why)
	}
	p.Outputs().Reset()
	p.Grant(0, Grant{Model: 7, SubCluster: 1, GPU: 3, Epoch: 9})
	o := p.Outputs()
	if len(o.Batches) != 0 || len(o.Frees) != 1 || o.Frees[0].Batch != 0 || o.Frees[0].Epoch != 9 || p.Queued(7) != 1 {
		t.Fatalf("%d batches, frees %+v, %d queued", len(o.Batches), o.Frees, p.Queued(7))
	}
}
