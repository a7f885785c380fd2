package sched

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// listedEarly is an early request of the plain list with which an earlyQueue is compared.
type listedEarly struct {
	Request
	from   Time
	number int
}

// TestEarlyQueueAgainstAList: a queue of early requests has the same first request and victim, and finds the same ids, as a plain list
// that is searched, also when ids repeat and when it empties.
func TestEarlyQueueAgainstAList(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		e, list, number := &earlyQueue{}, []listedEarly(nil), 0

		// It grows in half of the steps and shrinks in the other half, as often as not to nothing.
		for step, grow := 0, true; step < 4000; step++ {
			if r.IntN(200) == 0 {
				grow = !grow
			}
			if len(list) == 0 || r.IntN(4) > 0 == grow {
				number++
				x := listedEarly{number: number, from: Time(r.IntN(50))}
				x.Request = Request{ID: RequestID(r.IntN(300)), Origin: uint32(r.IntN(3)), Deadline: Time(r.IntN(50)), Priority: Priority(r.IntN(2) * r.IntN(3))}
				e.add(&x.Request, x.from)
				list = append(list, x)
			} else {
				list = removeSame(t, r, e, list)
			}
			compareEarly(t, r, e, list)
		}
	}
}

// removeSame removes one request from both, found by its time or by its id.
func removeSame(t *testing.T, r *rand.Rand, e *earlyQueue, list []listedEarly) []listedEarly {
	i, x := firstToJoin(list), e.heap[0].earlyRequest
	if r.IntN(3) > 0 {
		one := list[r.IntN(len(list))]
		i, x = newestOf(list, one.ID, one.Origin), e.find(one.ID, one.Origin)
	}
	if got := e.remove(x); got != list[i].Request {
		t.Fatalf("removed %+v, want %+v", got, list[i])
	}
	return slices.Delete(list, i, i+1)
}

func compareEarly(t *testing.T, r *rand.Rand, e *earlyQueue, list []listedEarly) {
	t.Helper()
	if e.len() != len(list) {
		t.Fatalf("%d requests, want %d", e.len(), len(list))
	}
	if len(list) > 0 {
		if want, got := list[firstToJoin(list)], e.heap[0]; got.Request != want.Request || got.from != want.from {
			t.Fatalf("first to join: %+v, want %+v", got, want)
		}
	}

	worst, victim := leastImportant(list), e.victim()
	if (worst == nil) != (victim == nil) {
		t.Fatalf("victim %+v, want %+v", victim, worst)
	}
	if worst != nil && len(list) <= searchMax && (victim.Priority != worst.Priority || victim.Deadline != worst.Deadline) {
		t.Fatalf("victim %+v, want %+v", victim, worst)
	}

	id, origin := RequestID(r.IntN(300)), uint32(r.IntN(3))
	i, x := newestOf(list, id, origin), e.find(id, origin)
	if (i < 0) != (x == nil) || x != nil && x.Request != list[i].Request {
		t.Fatalf("found %+v of id %d, want place %d of the list", x, id, i)
	}
}

// firstToJoin returns the place of the first request to join.
func firstToJoin(list []listedEarly) int {
	return slices.Index(list, slices.MinFunc(list, func(a, b listedEarly) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.number, b.number))
	}))
}

// leastImportant returns a request of the lowest priority, and of these one with the latest deadline.
func leastImportant(list []listedEarly) *listedEarly {
	if len(list) == 0 {
		return nil
	}
	x := slices.MinFunc(list, func(a, b listedEarly) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Deadline, a.Deadline))
	})
	return &x
}

// newestOf returns the place of the latest arrival with an id; -1: there is none.
func newestOf(list []listedEarly, id RequestID, origin uint32) int {
	best := -1
	for i := range list {
		if list[i].ID == id && list[i].Origin == origin && (best < 0 || list[i].number > list[best].number) {
			best = i
		}
	}
	return best
}
