package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestQueueAgainstASlice: after any additions and removals, the queue holds the same as a sorted slice, in that
// order, and came counts the additions.
func TestQueueAgainstASlice(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		m := &model{}
		m.q.since = rng.Uint32() // it wraps
		start := m.q.came()
		var mem memory
		var want []Request
		came := uint32(0)
		for range 400 {
			switch k := rng.IntN(10); {
			case k < 6:
				came++
				r := Request{ID: RequestID(came), Deadline: Time(rng.IntN(1 + rng.IntN(100)))}
				if m.q.full() {
					m.q.makeRoom(&mem)
				}
				e, place := m.q.insert(r.Deadline)
				*e = r
				i := 0
				for i < len(want) && want[i].Deadline <= r.Deadline {
					i++
				}
				if want = slices.Insert(want, i, r); i != place {
					t.Fatalf("seed %d: deadline %d went to place %d, want %d", seed, r.Deadline, place, i)
				}
			case k < 8 && len(want) > 0:
				i := rng.IntN(len(want))
				m.q.remove(i, &m.priorities)
				want = slices.Delete(want, i, i+1)
			case k == 8 && len(want) > 0:
				n := 1 + rng.IntN(min(len(want), 8))
				m.q.pop(n, &m.priorities)
				want = want[n:]
			case len(want) > 0:
				n := rng.IntN(len(want))
				m.q.cut(n)
				want = want[:len(want)-n]
			}
			if m.q.len() != len(want) || m.q.came()-start != came {
				t.Fatalf("seed %d: %d queued of %d that came, want %d of %d", seed, m.q.len(), m.q.came()-start, len(want), came)
			}
			for i := range want {
				if *m.q.at(i) != want[i] {
					t.Fatalf("seed %d: place %d holds %v, want %v", seed, i, *m.q.at(i), want[i])
				}
			}
			if n := len(want); n > 0 && (m.q.last != want[n-1].Deadline || m.q.first() != want[0].Deadline) {
				t.Fatalf("seed %d: deadlines %d to %d, want %d to %d", seed, m.q.first(), m.q.last, want[0].Deadline, want[n-1].Deadline)
			}
		}
	}
}

// BenchmarkLateCancel: a cancel of a request that is no longer in a queue of n.
func BenchmarkLateCancel(b *testing.B) {
	for _, n := range []int{1000, 10_000, QueueMaxDefault} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := NewPartition(Options{})
			if err := p.AddModel(0, 1, Model{Profile: line(b, time.Millisecond, 5*time.Millisecond, 8), SLO: 20 * ms}); err != nil {
				b.Fatal(err)
			}
			p.SetGPUs(0, 0, 1)
			for i := range n {
				p.Enqueue(0, Request{ID: RequestID(i), Model: 1, Deadline: Time(20 * ms)})
			}
			for b.Loop() {
				if p.Cancel(0, 1, RequestID(n), 0) {
					b.Fatal("found")
				}
			}
		})
	}
}

// BenchmarkShortBudgets: requests with half the budget among those with the whole, in a long queue.
func BenchmarkShortBudgets(b *testing.B) {
	m := &model{}
	var mem memory
	for i := range b.N {
		now := Time(i) * 10_000
		for k := range 2 {
			if m.q.full() {
				m.q.makeRoom(&mem)
			}
			e, _ := m.q.insert(now + Time(100*ms)/Time(k+1))
			e.ID = RequestID(i)
		}
		if n := m.q.len() - 10_000; n > 0 {
			m.q.pop(n, &m.priorities)
		}
	}
}
