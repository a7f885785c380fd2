package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestBusyGPUsAgainstASearch: after any sequence of set, change and removal, at any distance, the set of busy GPUs returns a GPU
// that becomes free first, and returns due GPUs on time.
func TestBusyGPUsAgainstASearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	spans := []int64{100, 1 << busyShift, 1e6, 20e6, busySlots << busyShift, 500e6}
	for range 30 {
		gpus := make([]gpu, 1+rng.IntN(80))
		a := busyGPUs{least: Never}
		now, span := Time(0), spans[rng.IntN(len(spans))]
		for range 2000 {
			id := GPUID(rng.IntN(len(gpus)))
			switch g := &gpus[id]; rng.IntN(4) {
			case 0, 1:
				g.state, g.freeAt = busy, now+Time(rng.Int64N(span))
				a.set(gpus, id)
			case 2:
				g.state = idle
			default:
				now += Time(rng.Int64N(span/int64(len(gpus)) + 2))
				for last := Time(0); ; {
					id, ok := a.advance(gpus, now)
					if !ok {
						break
					}
					if gpus[id].state != busy || gpus[id].freeAt > now {
						t.Fatalf("at %d: gpu %d is given out: %+v", now, id, gpus[id])
					}
					if gpus[id].freeAt < last {
						t.Fatalf("at %d: gpu %d, free at %d, comes after one at %d", now, id, gpus[id].freeAt, last)
					}
					last = gpus[id].freeAt
					gpus[id].state = idle
				}
			}
			at := Never
			for i := range gpus {
				if g := &gpus[i]; g.state == busy {
					at = min(at, g.freeAt)
				}
			}
			if a.least > at {
				t.Fatalf("at %d: least is %d, a gpu is free at %d", now, a.least, at)
			}
			if rng.IntN(4) == 0 {
				if id, when := a.top(gpus); when != at || at != Never && (gpus[id].state != busy || gpus[id].freeAt != at) {
					t.Fatalf("at %d: top is gpu %d at %d: %+v, want one at %d", now, id, when, gpus[id], at)
				}
			}
		}
	}
}

// BenchmarkAgendaAtOnce: GPUs that get their batches at once become free at once, and cost no more for it.
func BenchmarkAgendaAtOnce(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint("gpus=", n), func(b *testing.B) {
			gpus, a, now := make([]gpu, n), busyGPUs{least: Never}, Time(0)
			for k := 0; k < b.N; k += n {
				now += 10_000_000
				for id := range gpus {
					gpus[id].state, gpus[id].freeAt = busy, now
					a.set(gpus, GPUID(id))
				}
				for id, ok := a.advance(gpus, now); ok; id, ok = a.advance(gpus, now) {
					gpus[id].state = idle
				}
			}
		})
	}
}
