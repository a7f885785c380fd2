package sched

import "math/bits"

// agenda orders busy GPUs by when they are free: slots of 8 µs, a chain of GPUs in each. The links are in
// the gpus, in the line that whoever calls touches anyway, since several cores take turns with a Ranker and
// a heap's path would be fetched from another core each time. A GPU that is no longer busy, or busy for
// longer, stays in its slot until the slot is looked at. One that is free beyond the last slot is parked
// there.
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
	n := a.place(g.freeAt)
	if g.slot != 0 {
		if (int64(g.slot-1)-a.cur)&agendaMask <= n-a.cur {
			return // it will be moved on when the slot is looked at
		}
		a.unlink(gpus, g)
	}
	a.link(gpus, id, g, int32(n&agendaMask))
}

func (a *agenda) link(gpus []gpu, id GPUID, g *gpu, s int32) {
	if a.slot == nil {
		a.slot = make([]int32, agendaSlots)
	}
	g.slot, g.prev, g.next = s+1, 0, a.slot[s]
	if g.next != 0 {
		gpus[g.next-1].prev = int32(id) + 1
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

// tidy takes from slot s the GPUs that are not busy, moves on those that are busy for longer, and returns
// the one that is free first, of several that of the lowest number.
func (a *agenda) tidy(gpus []gpu, n int64) (id GPUID, at Time) {
	s := int32(n & agendaMask)
	at = Never
	for i := a.slot[s]; i != 0; {
		g := &gpus[i-1]
		next := g.next
		switch to := a.place(g.freeAt); {
		case g.state != busy:
			a.unlink(gpus, g)
		case to != n:
			a.unlink(gpus, g)
			a.link(gpus, GPUID(i-1), g, int32(to&agendaMask))
		case g.freeAt < at || g.freeAt == at && GPUID(i-1) < id:
			id, at = GPUID(i-1), g.freeAt
		}
		i = next
	}
	return id, at
}

// top returns the GPU that is free first and when, Never when none is busy.
func (a *agenda) top(gpus []gpu) (GPUID, Time) {
	for {
		n, ok := a.first()
		if !ok {
			a.least = Never
			return 0, Never
		}
		if id, at := a.tidy(gpus, n); at != Never {
			a.least = at
			return id, at
		}
	}
}

// advance moves the agenda to now and returns a GPU that is free by then, which the caller must make idle
// or stall before it asks again; false when there is none.
func (a *agenda) advance(gpus []gpu, now Time) (GPUID, bool) {
	for to := int64(now) >> agendaShift; a.cur < to; {
		n, ok := a.first()
		if !ok || n >= to {
			a.cur = to
			break
		}
		a.cur = n
		if id, at := a.tidy(gpus, n); at != Never {
			return id, true
		}
	}
	if a.least > now {
		return 0, false
	}
	id, at := a.top(gpus)
	return id, at <= now
}
