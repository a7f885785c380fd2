package sched

import (
	"math/rand/v2"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// queueOf returns a partition whose model 1 has n queued requests, those with even ids of origin 1 and the others of
// origin 2.
func queueOf(t *testing.T, n int) *Partition {
	t.Helper()
	p := NewPartition(Options{})
	p.SetGPUs(0, 0, 1)
	if err := p.AddModel(0, 1, Model{Profile: line(t, time.Millisecond, 9*time.Millisecond, 8), SLO: 1000 * ms, QueueMax: 2 * n}); err != nil {
		t.Fatal(err)
	}
	for id := range n {
		p.Enqueue(0, Request{ID: RequestID(id), Model: 1, Origin: 1 + uint32(id)&1, Deadline: Time(900 * ms)})
	}
	return p
}

// TestSearchesAreShort: no call checks more than searchMax requests of a queue of 95,000, where 2,000 duplicate ids
// and as many late cancels could each cost a search of the whole queue; all withdrawn requests end nevertheless.
func TestSearchesAreShort(t *testing.T) {
	const n = 95_000
	p := queueOf(t, n)
	short := func(what string, call func()) {
		t.Helper()
		before := p.Stats().Searched
		call()
		if looked := p.Stats().Searched - before; looked > searchMax {
			t.Errorf("%s looked at %d requests", what, looked)
		}
	}

	short("a cancel", func() { p.Cancel(0, 1, n-1, 2) })
	for id := range RequestID(2000) {
		short("an id that came twice", func() {
			if !p.Holds(1, n-1-id, 1) {
				t.Fatal("a queued id may come twice")
			}
		})
		short("a late cancel", func() { p.Cancel(0, 1, n+id, 1) })
	}
	short("the end of an origin", func() { p.CancelAll(0, 1, 1) })
	for p.NextWake() == 0 {
		short("a sweep's step", func() { p.Advance(0) })
	}

	for _, d := range p.Outputs().Drops {
		if d.Reason != vocabulary.Canceled || d.Origin != 1 && d.ID != n-1 {
			t.Fatalf("request %d of origin %d ended with %v", d.ID, d.Origin, d.Reason)
		}
	}
	if got, want := p.Queued(1), n/2-1; got != want {
		t.Errorf("%d queued after all was withdrawn, want %d", got, want)
	}
}

// TestSweepsAgainstASet: after any arrivals, removals and withdrawals, a withdrawn request is gone when the sweeps
// have ended, and all others remain.
func TestSweepsAgainstASet(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 21))
		p := queueOf(t, 600+rng.IntN(3000))
		ended, withdrawn := map[RequestID]bool{}, map[RequestID]bool{}
		next, now := RequestID(p.Queued(1)), Time(0)
		note := func() {
			for _, b := range p.Outputs().Batches {
				for _, r := range b.Requests {
					ended[r.ID] = true
				}
			}
			for _, d := range p.Outputs().Drops {
				if ended[d.ID] || d.Reason == vocabulary.Canceled && !withdrawn[d.ID] {
					t.Fatalf("seed %d: request %d ended with %v, again or unasked", seed, d.ID, d.Reason)
				}
				ended[d.ID] = true
			}
			p.Outputs().Reset()
		}

		for range 400 {
			switch now++; rng.IntN(4) {
			case 0:
				p.Enqueue(now, Request{ID: next, Model: 1, Origin: 1 + uint32(next)&1, Deadline: Time(700*ms + Duration(rng.Int64N(int64(300*ms)))), Priority: Priority(rng.IntN(2))})
				next++
			case 1:
				id := RequestID(rng.Int64N(int64(next)))
				withdrawn[id] = true
				if p.Cancel(now, 1, id, 1+uint32(id)&1) {
					ended[id] = true
				}
			case 2:
				p.Grant(now, Grant{Model: 1, FreeAt: now, Load: 1})
			case 3:
				p.Advance(now)
			}
			note()
		}
		for p.NextWake() <= now {
			p.Advance(now)
			note()
		}

		m := &p.models[0]
		for i := range m.q.len() {
			if id := m.q.at(i).ID; withdrawn[id] && !ended[id] {
				t.Fatalf("seed %d: request %d is queued although it was withdrawn", seed, id)
			}
		}
		checkRanks(t, seed, m)
		if got := m.q.len() + len(ended); got != int(p.Stats().Enqueued) {
			t.Fatalf("seed %d: %d queued or ended, %d came", seed, got, p.Stats().Enqueued)
		}
	}
}
