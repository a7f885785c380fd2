package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sim"
)

// TestRequestsAgainstASlice does the same to a queue and to a plain slice.
func TestRequestsAgainstASlice(t *testing.T) {
	w := &sim.World{Models: []sim.Model{{SLO: 20e6}}}
	for i := range 4000 {
		w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: time.Duration(i) * 1e6})
	}

	rng := rand.New(rand.NewPCG(1, 2))
	var q Requests
	var want []int32
	late := []int32{} // taken, to be inserted again
	for next := int32(0); next < 4000; {
		switch n := rng.IntN(8); {
		case n < 4:
			q.Push(next)
			want = append(want, next)
			next++
		case n < 6 && len(want) > 2:
			skip := rng.IntN(len(want) - 1)
			size := 1 + rng.IntN(len(want)-skip)
			got := q.Cut(skip, size)
			if !slices.Equal(got, want[skip:skip+size]) {
				t.Fatalf("cut %v, want %v", got, want[skip:skip+size])
			}
			late = append(late, got[0])
			want = slices.Delete(want, skip, skip+size)
		case n == 6 && len(late) > 0:
			r := late[0]
			late = late[1:]
			q.Insert(w, r)
			want = append(want, r)
			slices.Sort(want) // numbers grow with deadlines
		}

		if q.Len() != len(want) {
			t.Fatalf("%d in the queue, want %d", q.Len(), len(want))
		}
		for i := range want {
			if q.At(i) != want[i] {
				t.Fatalf("place %d has %d, want %d", i, q.At(i), want[i])
			}
		}
	}
}
