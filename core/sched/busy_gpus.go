package sched

import "math/bits"

// busyGPUs orders the busy GPUs by the time when they become free. It has slots of 8 µs, each with a chain sorted by time.
// The links are in the gpus, in the cache line that callers touch anyway: several cores take turns with a Ranker, and
// would fetch each node of a heap's path from another core. A GPU that is no longer busy, or busy for longer, stays
// in its slot until it comes first. A GPU that becomes free beyond the last slot is parked there. Few GPUs become
// free within the same 8 µs, except those that become free at exactly the same time, as when many get their batches
// at once. Of these the one entered last comes first, so that no search is needed.
type busyGPUs struct {
	least Time  // no busy GPU becomes free earlier
	cur   int64 // number of the slot of the latest call of advance
	slot  []int32
	word  [busySlots / 64]uint64 // which slots have a chain
	sum   [busySlots / 64 / 64]uint64
}

const (
	busySlots = 1 << 13
	busyShift = 13 // 8.2 µs a slot, 67 ms in all
	busyMask  = busySlots - 1
)

// place returns the number of a time's slot; a past time has the current slot.
func (a *busyGPUs) place(at Time) int64 {
	return max(a.cur, min(int64(at)>>busyShift, a.cur+busySlots-1))
}

// set enters a GPU at its freeAt; it may already be in the set of busy GPUs.
func (a *busyGPUs) set(gpus []gpu, id GPUID) {
	g := &gpus[id]
	a.least = min(a.least, g.freeAt)
	if g.slot != 0 {
		if g.at <= g.freeAt {
			return // it is moved when it comes first
		}
		a.unlink(gpus, g)
	}
	a.link(gpus, id, g, a.place(g.freeAt))
}

// link puts a GPU into slot n.
func (a *busyGPUs) link(gpus []gpu, id GPUID, g *gpu, n int64) {
	if a.slot == nil {
		a.slot = make([]int32, busySlots)
	}

	// A slot's GPUs are sorted by time; the slot points at the first.
	s := int32(n & busyMask)
	prev, next := int32(0), a.slot[s]
	for next != 0 && gpus[next-1].at < g.freeAt {
		prev, next = next, gpus[next-1].next
	}

	g.at, g.slot, g.prev, g.next = g.freeAt, s+1, prev, next
	if next != 0 {
		gpus[next-1].prev = int32(id) + 1
	}
	if prev != 0 {
		gpus[prev-1].next = int32(id) + 1
		return
	}

	a.slot[s] = int32(id) + 1
	a.word[s>>6] |= 1 << (s & 63)
	a.sum[s>>12] |= 1 << (s >> 6 & 63)
}

func (a *busyGPUs) unlink(gpus []gpu, g *gpu) {
	s := g.slot - 1
	if g.next != 0 {
		gpus[g.next-1].prev = g.prev
	}
	if g.prev != 0 {
		gpus[g.prev-1].next = g.next
	} else if a.slot[s] = g.next; g.next == 0 {
		a.empty(s)
	}
	g.slot = 0
}

// empty records that slot s has no chain.
func (a *busyGPUs) empty(s int32) {
	a.slot[s] = 0
	if a.word[s>>6] &^= 1 << (s & 63); a.word[s>>6] == 0 {
		a.sum[s>>12] &^= 1 << (s >> 6 & 63)
	}
}

// first returns the number of the first slot in use, from cur on.
func (a *busyGPUs) first() (int64, bool) {
	s := int32(a.cur & busyMask)
	if w := a.word[s>>6] >> (s & 63); w != 0 {
		return a.cur + int64(bits.TrailingZeros64(w)), true
	}
	w := s>>6 + 1 // the next word to check; all words, and the first one again for its low bits
	for end := w + int32(len(a.word)); w < end; {
		i := w & int32(len(a.word)-1)
		if x := a.sum[i>>6] >> (i & 63); x == 0 {
			w += 64 - i&63
		} else if k := int32(bits.TrailingZeros64(x)); k > 0 {
			w += k
		} else {
			n := i<<6 + int32(bits.TrailingZeros64(a.word[i]))
			return a.cur + int64(n-s)&busyMask, true
		}
	}
	return 0, false
}

// head returns the first GPU of slot n if it is busy and belongs there. Otherwise it removes the GPU, or moves it to
// its slot, and returns false.
func (a *busyGPUs) head(gpus []gpu, n int64) (GPUID, *gpu, bool) {
	// A change does not move a GPU at once, only when the GPU comes first.
	id := GPUID(a.slot[n&busyMask] - 1)
	g := &gpus[id]

	to := a.place(g.freeAt)
	if g.state == busy && g.at == g.freeAt && to == n {
		return id, g, true
	}
	a.unlink(gpus, g)
	if g.state == busy {
		a.link(gpus, id, g, to)
	}
	return id, g, false
}

// top returns the GPU that becomes free first and the time; Never when none is busy.
func (a *busyGPUs) top(gpus []gpu) (GPUID, Time) {
	for {
		n, ok := a.first()
		if !ok {
			a.least = Never
			return 0, Never
		}
		if id, g, ok := a.head(gpus, n); ok {
			a.least = g.freeAt
			return id, g.freeAt
		}
	}
}

// advance removes a GPU that is free by now and returns it; false when there is none. It moves the set to now only when
// a GPU may be free, so most calls cost one comparison.
func (a *busyGPUs) advance(gpus []gpu, now Time) (GPUID, bool) {
	if a.least > now {
		return 0, false
	}
	for to := int64(now) >> busyShift; a.cur < to; {
		n, ok := a.first()
		if !ok || n >= to {
			a.cur = to
			break
		}
		a.cur = n
		if id, g, ok := a.head(gpus, n); ok {
			a.unlink(gpus, g)
			return id, true
		}
	}

	// Within the current slot the exact time decides.
	id, at := a.top(gpus)
	if at > now {
		return 0, false
	}
	a.unlink(gpus, &gpus[id])
	return id, true
}
