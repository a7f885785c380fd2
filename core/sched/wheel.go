package sched

import "math/bits"

// wheel is a timing wheel of exact times: one level of slots, intrusive lists, one timer per index. A timer beyond
// the horizon is parked in the farthest slot and placed again when the wheel reaches it. Arming and next cost a few
// nanoseconds; next may be too early after a timer moved later, but never too late.
type wheel struct {
	node  []timer
	slot  [wheelSlots]int32 // first timer of the slot, -1: none
	early [wheelSlots]Time  // no timer of the slot is due earlier; exact after drain
	bits  [wheelSlots / 64]uint64
	cur   int64 // number of the slot of the latest Advance
	armed int
}

type timer struct {
	at         Time
	next, prev int32
	slot       int32 // -1: off
}

const (
	wheelSlots = 1024
	wheelShift = 16 // 65.5 µs a slot, 67 ms in all
	wheelMask  = wheelSlots - 1
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
	n := w.place(at)

	// Most timers move within their slot: the links stay.
	if s := int32(n & wheelMask); t.slot == s {
		t.at = at
		w.early[s] = min(w.early[s], w.bound(n, at))
		return
	}
	if t.slot >= 0 {
		w.unlink(i)
	}
	t.at = at
	w.link(i, n)
}

// off disarms timer i.
func (w *wheel) off(i int32) {
	if w.node[i].slot >= 0 {
		w.unlink(i)
	}
}

// place returns the number of a time's slot; a past time has the current slot.
func (w *wheel) place(at Time) int64 {
	return max(w.cur, min(int64(at)>>wheelShift, w.cur+wheelSlots-1))
}

// bound returns when a timer in slot n must be checked: when it is due, or, if it is parked, when the wheel reaches
// the slot.
func (w *wheel) bound(n int64, at Time) Time {
	return min(at, Time((n+1)<<wheelShift))
}

func (w *wheel) link(i int32, n int64) {
	t, s := &w.node[i], int32(n&wheelMask)
	b := w.bound(n, t.at)
	t.slot, t.prev, t.next = s, -1, w.slot[s]
	if t.next >= 0 {
		w.node[t.next].prev = i
		b = min(b, w.early[s])
	}
	w.early[s] = b
	w.slot[s] = i
	w.bits[s>>6] |= 1 << (s & 63)
	w.armed++
}

func (w *wheel) unlink(i int32) {
	t := &w.node[i]
	if t.next >= 0 {
		w.node[t.next].prev = t.prev
	}

	// The slot points only at its first timer.
	if t.prev >= 0 {
		w.node[t.prev].next = t.next
	} else {
		w.slot[t.slot] = t.next
		if t.next < 0 {
			w.bits[t.slot>>6] &^= 1 << (t.slot & 63)
		}
	}
	t.slot = -1
	w.armed--
}

// next returns a time before which no timer is due; Never when none is armed.
func (w *wheel) next() Time {
	if w.armed == 0 {
		return Never
	}
	return w.early[(w.cur+int64(w.ahead()))&wheelMask]
}

// ahead returns how many slots after cur the first used slot lies; some slot must be in use.
func (w *wheel) ahead() int {
	s := int(w.cur & wheelMask)

	// The word of the current slot is checked twice: its high bits now, its low bits a round later.
	if b := w.bits[s>>6] >> (s & 63); b != 0 {
		return bits.TrailingZeros64(b)
	}
	for k := 1; k <= len(w.bits); k++ {
		j := (s>>6 + k) % len(w.bits)
		if b := w.bits[j]; b != 0 {
			return (j<<6 + bits.TrailingZeros64(b) - s) & wheelMask
		}
	}
	return 0
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

	last := min(to, from+wheelSlots-1)
	for n := from; n <= last; n++ {
		s := int32(n & wheelMask)

		// Skip 64 empty slots at once.
		if w.bits[s>>6] == 0 && n&63 == 0 && n+63 <= last {
			n += 63
			continue
		}
		if w.bits[s>>6]&(1<<(s&63)) != 0 {
			due = w.drain(s, now, due)
		}
	}
	return due
}

// drain empties slot s: due timers go to due, the others are placed anew.
func (w *wheel) drain(s int32, now Time, due []int32) []int32 {
	i := w.slot[s]

	// Empty the slot first: a parked timer may be linked into it again.
	w.slot[s] = -1
	w.bits[s>>6] &^= 1 << (s & 63)
	for i >= 0 {
		t := &w.node[i]
		next := t.next
		t.slot = -1
		w.armed--
		if t.at <= now {
			due = append(due, i)
		} else {
			w.link(i, w.place(t.at))
		}
		i = next
	}
	return due
}
