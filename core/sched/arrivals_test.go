package sched

import "testing"

// TestArrivalsAdmitAsAdmit: a driver that lets requests join by Arrivals where it may gets the same queue, counters and
// batches as one that calls Admit for each.
func TestArrivalsAdmitAsAdmit(t *testing.T) {
	type outcome struct {
		stats   Stats
		batches []int
		joined  int
	}
	run := func(pieces bool) (o outcome) {
		s := New(Options{})
		if err := s.AddModel(0, 3, Model{Profile: line(t, 100_000, 1_000_000, 64), SLO: 1e8, QueueMax: 40}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddGPU(0, 0, 0); err != nil {
			t.Fatal(err)
		}

		p := s.part
		for i := range 4000 {
			now := Time(i) * 50_000
			s.reset()
			deadline := now.Add(Duration(2+i*7%99) * 1_000_000)
			if i%3 > 0 {
				deadline = now.Add(1e8)
			}

			a := p.Arrive(now)
			if x := a.Find(3); pieces && a.JoinsLast(x, deadline) {
				a.NoteArrival(x)
				*x.Append(3, deadline) = Request{ID: RequestID(i), Model: 3, Deadline: deadline}
				o.joined++
			} else if r, _ := p.Admit(now, 3, deadline, 0); r != nil {
				r.ID = RequestID(i)
			}

			s.Advance(now)
			sent, _ := s.Actions()
			for k := range sent {
				o.batches = append(o.batches, int(sent[k].Requests[0].ID), len(sent[k].Requests))
				if err := s.Complete(now, sent[k].ID, 0, sent[k].Finish); err != nil {
					t.Fatal(err)
				}
			}
		}
		o.stats = s.part.stats
		return o
	}

	want, got := run(false), run(true)
	if got.joined < 500 {
		t.Errorf("%d of 4000 requests joined by Arrivals", got.joined)
	}
	if got.stats != want.stats {
		t.Errorf("by Arrivals %+v, by Admit %+v", got.stats, want.stats)
	}
	if len(want.batches) == 0 || len(got.batches) != len(want.batches) {
		t.Fatalf("%d batches by Arrivals, %d by Admit", len(got.batches)/2, len(want.batches)/2)
	}
	for i := range want.batches {
		if got.batches[i] != want.batches[i] {
			t.Fatalf("batch %d: %d by Arrivals, %d by Admit", i/2, got.batches[i], want.batches[i])
		}
	}

	a := NewPartition(Options{}).Arrive(0)
	if a.JoinsLast(a.Find(7), 1e9) {
		t.Error("a request joins the queue of an unknown model")
	}
}
