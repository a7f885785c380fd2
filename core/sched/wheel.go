package sched

import "math/bits"

// wheel is a timing wheel of exact times: two rings of slots, intrusive lists, one timer per index. The near ring has
// fine slots. A timer beyond them waits in the far ring, whose slots are each as long as the whole near ring, and is
// placed again when a timer of its slot is due. A timer beyond the far ring is parked in its last slot. Arming and next
// cost a few nanoseconds; next may be too early after a timer moved later, but never too late.
type wheel struct {
	node  []timer
	slot  [wheelSlots]int32 // first timer of the slot, -1: none; the near ring, then the far one
	early [wheelSlots]Time  // no timer of the slot is due earlier; exact after drain
	near  [nearSlots / 64]uint64
	words uint16 // which words of near are not 0
	far   uint64
	cur   int64 // number of the near slot of the latest Advance
}

type timer struct {
	at         Time
	next, prev int32
	slot       int32 // -1: off
}

const (
	wheelShift = 16 // 65.5 µs a near slot, 67 ms in all
	nearShift  = 10
	nearSlots  = 1 << nearShift
	nearMask   = nearSlots - 1
	farShift   = wheelShift + nearShift // 67 ms a far slot, 4.3 s in all
	farSlots   = 64
	farMask    = farSlots - 1
	wheelSlots = nearSlots + farSlots
)

func newWheel(now Time) *wheel {
	w := &wheel{cur: int64(now) >> wheelShift}
	for i := range w.slot {
		w.slot[i] = -1
	}
	return w
}

// grow makes room for timers 0…n-1.
func (w *wheel) grow(n int) {
	for len(w.node) < n {
		w.node = append(w.node, timer{slot: -1})
	}
}

// arm sets timer i to at.
func (w *wheel) arm(i int32, at Time) {
	t := &w.node[i]
	s, bound := w.place(at)

	// Most timers move within their slot: the links stay.
	if t.slot == s {
		t.at = at
		w.early[s] = min(w.early[s], bound)
		return
	}
	if t.slot >= 0 {
		w.unlink(i)
	}
	t.at = at
	w.link(i, s, bound)
}

// off disarms timer i.
func (w *wheel) off(i int32) {
	if w.node[i].slot >= 0 {
		w.unlink(i)
	}
}

// place returns the slot of a time, and when a timer there must be checked: when it is due, or, if it is parked, at the
// slot's end. A past time has the current slot.
func (w *wheel) place(at Time) (slot int32, bound Time) {
	n := max(w.cur, int64(at)>>wheelShift)
	if n < w.cur+nearSlots {
		return int32(n & nearMask), at
	}
	n = min(n>>nearShift, w.cur>>nearShift+farSlots-1)
	return nearSlots + int32(n&farMask), min(at, Time((n+1)<<farShift))
}

func (w *wheel) link(i, s int32, bound Time) {
	t := &w.node[i]
	t.slot, t.prev, t.next = s, -1, w.slot[s]
	if t.next >= 0 {
		w.node[t.next].prev = i
		bound = min(bound, w.early[s])
	}
	w.early[s] = bound
	w.slot[s] = i

	if s >= nearSlots {
		w.far |= 1 << (s - nearSlots)
		return
	}
	w.near[s>>6] |= 1 << (s & 63)
	w.words |= 1 << (s >> 6)
}

func (w *wheel) unlink(i int32) {
	t := &w.node[i]
	if t.next >= 0 {
		w.node[t.next].prev = t.prev
	}

	// The slot points only at its first timer.
	if t.prev >= 0 {
		w.node[t.prev].next = t.next
	} else if w.slot[t.slot] = t.next; t.next < 0 {
		w.empty(t.slot)
	}
	t.slot = -1
}

// empty records that slot s has no timer.
func (w *wheel) empty(s int32) {
	w.slot[s] = -1
	if s >= nearSlots {
		w.far &^= 1 << (s - nearSlots)
	} else if w.near[s>>6] &^= 1 << (s & 63); w.near[s>>6] == 0 {
		w.words &^= 1 << (s >> 6)
	}
}

// next returns a time before which no timer is due; Never when none is armed.
func (w *wheel) next() Time {
	at := Never
	if w.words != 0 {
		at = w.early[(w.cur+w.slotsUntilUsed(w.cur))&nearMask]
	}
	if w.far != 0 {
		n := w.cur >> nearShift
		first := n + int64(bits.TrailingZeros64(bits.RotateLeft64(w.far, -int(n&farMask))))
		at = min(at, w.early[nearSlots+first&farMask])
	}
	return at
}

// slotsUntilUsed returns how many slots after near slot n the first used one lies; some slot must be in use.
func (w *wheel) slotsUntilUsed(n int64) int64 {
	s := n & nearMask

	// The word of slot n is checked twice: its high bits now, its low bits a round later.
	if b := w.near[s>>6] >> (s & 63); b != 0 {
		return int64(bits.TrailingZeros64(b))
	}
	after := s>>6 + 1
	j := (after + int64(bits.TrailingZeros16(bits.RotateLeft16(w.words, -int(after))))) % int64(len(w.near))
	return (j<<6 + int64(bits.TrailingZeros64(w.near[j])) - s) & nearMask
}

// advance appends the timers due at now to due, disarmed, and moves the wheel to now.
func (w *wheel) advance(now Time, due []int32) []int32 {
	from, to := w.cur, int64(now)>>wheelShift
	if to < from {
		return due
	}

	nothing := w.next() > now
	w.cur = to
	if nothing {
		return due // and the passed slots are empty
	}

	// The far ring first: what is not due of its slots moves to the near ring, or stays parked.
	for n := from >> nearShift; w.far != 0 && n <= min(to>>nearShift, from>>nearShift+farSlots-1); n++ {
		if w.far&(1<<(n&farMask)) != 0 {
			due = w.drain(nearSlots+int32(n&farMask), now, due)
		}
	}
	for n, last := from, min(to, from+nearSlots-1); w.words != 0; n++ {
		if n += w.slotsUntilUsed(n); n > last {
			break
		}
		due = w.drain(int32(n&nearMask), now, due)
	}
	return due
}

// drain empties slot s: due timers go to due, the others are placed anew.
func (w *wheel) drain(s int32, now Time, due []int32) []int32 {
	i := w.slot[s]

	// Empty the slot first: a timer may be linked into it again.
	w.empty(s)
	for i >= 0 {
		t := &w.node[i]
		next := t.next
		t.slot = -1
		if t.at <= now {
			due = append(due, i)
		} else {
			s, bound := w.place(t.at)
			w.link(i, s, bound)
		}
		i = next
	}
	return due
}
