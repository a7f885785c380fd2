package sched

import "math/bits"

// agenda orders busy GPUs by when they are free: slots of 8 µs, in each a chain in order of time. The links
// are in the gpus, in the line that whoever calls touches anyway, since several cores take turns with a
// Ranker and a heap's path would be fetched from another core each time. A GPU that is no longer busy, or
// busy for longer, stays where it is until it comes first. One that is free beyond the last slot is parked
// there. Few GPUs are free within the same 8 µs, but for those that are at the very same time, as when many
// get their batches at once: the latest of these comes first, and nothing is searched.
type agenda struct {
	least Time  // no busy GPU is free before
	cur   int64 // number of the slot that holds the latest look
	slot  []int32
	word  [agendaSlots / 64]uint64 // which slots have a chain
	sum   [agendaSlots / 64 / 64]uint64
}

const (
	agendaSlots = 1 << 13
	agendaShift = 13 // 8.2 µs a slot, 67 ms in all
	agendaMask  = agendaSlots - 1
)

// place returns the number of the slot for a time: that of a past one is the current slot.
func (a *agenda) place(at Time) int64 {
	return max(a.cur, min(int64(at)>>agendaShift, a.cur+agendaSlots-1))
}

// set enters a GPU at its freeAt; it may be there already.
func (a *agenda) set(gpus []gpu, id GPUID) {
	g := &gpus[id]
	a.least = min(a.least, g.freeAt)
	if g.slot != 0 {
		if g.at <= g.freeAt {
			return // it moves on when it comes first
		}
		a.unlink(gpus, g)
	}
	a.link(gpus, id, g, a.place(g.freeAt))
}

// link puts a GPU into slot n.
func (a *agenda) link(gpus []gpu, id GPUID, g *gpu, n int64) {
	if a.slot == nil {
		a.slot = make([]int32, agendaSlots)
	}

	// A slot's GPUs stand in order of time; the slot begins at the first.
	s := int32(n & agendaMask)
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

func (a *agenda) unlink(gpus []gpu, g *gpu) {
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

// empty notes that slot s has no chain.
func (a *agenda) empty(s int32) {
	a.slot[s] = 0
	if a.word[s>>6] &^= 1 << (s & 63); a.word[s>>6] == 0 {
		a.sum[s>>12] &^= 1 << (s >> 6 & 63)
	}
}

// first returns the number of the first slot in use, from cur on.
func (a *agenda) first() (int64, bool) {
	s := int32(a.cur & agendaMask)
	if w := a.word[s>>6] >> (s & 63); w != 0 {
		return a.cur + int64(bits.TrailingZeros64(w)), true
	}
	w := s>>6 + 1 // the word to look at next; all of them, the first one again for its low bits
	for end := w + int32(len(a.word)); w < end; {
		i := w & int32(len(a.word)-1)
		if x := a.sum[i>>6] >> (i & 63); x == 0 {
			w += 64 - i&63
		} else if k := int32(bits.TrailingZeros64(x)); k > 0 {
			w += k
		} else {
			n := i<<6 + int32(bits.TrailingZeros64(a.word[i]))
			return a.cur + int64(n-s)&agendaMask, true
		}
	}
	return 0, false
}

// head returns the first GPU of slot n if it is busy and belongs there. If not it takes it out, or to where
// it belongs, and returns false.
func (a *agenda) head(gpus []gpu, n int64) (GPUID, *gpu, bool) {
	// Changes are not followed when they happen, only when the GPU comes first.
	id := GPUID(a.slot[n&agendaMask] - 1)
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

// top returns the GPU that is free first and when, Never when none is busy.
func (a *agenda) top(gpus []gpu) (GPUID, Time) {
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

// advance moves the agenda to now, takes a GPU out that is free by then, and returns it; false when there
// is none.
func (a *agenda) advance(gpus []gpu, now Time) (GPUID, bool) {
	for to := int64(now) >> agendaShift; a.cur < to; {
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

	// Within the present slot the moment decides.
	if a.least > now {
		return 0, false
	}
	id, at := a.top(gpus)
	if at > now {
		return 0, false
	}
	a.unlink(gpus, &gpus[id])
	return id, true
}
