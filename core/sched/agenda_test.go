package sched

import (
	"math/rand/v2"
	"testing"
)

// TestAgendaAgainstASearch: whatever is set, changed and taken out, and however far off, the agenda gives
// the GPU that is free first, of several that of the lowest number, and never says that none is due.
func TestAgendaAgainstASearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	spans := []int64{100, 1 << agendaShift, 1e6, 20e6, agendaSlots << agendaShift, 500e6}
	for range 30 {
		gpus := make([]gpu, 1+rng.IntN(80))
		a := agenda{least: Never}
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
				for {
					id, ok := a.advance(gpus, now)
					if !ok {
						break
					}
					if gpus[id].state != busy || gpus[id].freeAt > now {
						t.Fatalf("at %d: gpu %d is given out: %+v", now, id, gpus[id])
					}
					gpus[id].state = idle
				}
			}
			want, at := GPUID(0), Never
			for i := range gpus {
				if g := &gpus[i]; g.state == busy && g.freeAt < at {
					want, at = GPUID(i), g.freeAt
				}
			}
			if a.least > at {
				t.Fatalf("at %d: least is %d, gpu %d is free at %d", now, a.least, want, at)
			}
			if rng.IntN(4) == 0 {
				if got, when := a.top(gpus); when != at || at != Never && got != want {
					t.Fatalf("at %d: top is gpu %d at %d, want %d at %d", now, got, when, want, at)
				}
			}
		}
	}
}
