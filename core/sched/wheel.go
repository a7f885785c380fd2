package sched

import "math/bits"

// wheel is a timing wheel of exact times: one level of slots, intrusive lists, one timer per
// index. A timer beyond the horizon is parked in the farthest slot and placed again when the wheel
// comes there. Arming costs a few nanoseconds; next may answer too early after a timer moved
// later, never too late.
type wheel struct {
	node  []timer
	slot  [wheelSlots]int32 // first timer of the slot, -1: none
	bits  [wheelSlots / 64]uint64
	cur   int64 // number of the slot that holds the latest Advance
	armed int
	early Time // no timer is due before early
	dirty bool // early may be earlier than the earliest timer
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
	w := &wheel{cur: int64(now) >> wheelShift, early: Never}
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
	s := w.place(at)
	if at < w.early {
		w.early = at
	}
	if t.slot == s {
		w.dirty = w.dirty || t.at < at
		t.at = at
		return
	}
	if t.slot >= 0 {
		w.dirty = w.dirty || t.at < at
		w.unlink(i)
	}
	t.at = at
	w.link(i, s)
}

// off disarms timer i.
func (w *wheel) off(i int32) {
	if w.node[i].slot >= 0 {
		w.unlink(i)
		w.dirty = true
	}
}

func (w *wheel) place(at Time) int32 {
	n := int64(at) >> wheelShift
	n = max(w.cur, min(n, w.cur+wheelSlots-1))
	return int32(n & wheelMask)
}

func (w *wheel) link(i, s int32) {
	t := &w.node[i]
	t.slot, t.prev, t.next = s, -1, w.slot[s]
	if t.next >= 0 {
		w.node[t.next].prev = i
	}
	w.slot[s] = i
	w.bits[s>>6] |= 1 << (s & 63)
	w.armed++
}

func (w *wheel) unlink(i int32) {
	t := &w.node[i]
	if t.next >= 0 {
		w.node[t.next].prev = t.prev
	}
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

// next returns a time that no timer is due before, Never when none is armed.
func (w *wheel) next() Time {
	if w.armed == 0 {
		w.early, w.dirty = Never, false
		return Never
	}
	if w.dirty {
		w.early, w.dirty = w.scan(), false
	}
	return w.early
}

// scan finds the earliest timer of the first slot in use. A parked timer counts as its slot's
// start: whoever wakes then places it anew.
func (w *wheel) scan() Time {
	d := w.ahead()
	n := w.cur + int64(d)
	best := Never
	for i := w.slot[n&wheelMask]; i >= 0; i = w.node[i].next {
		at := w.node[i].at
		if int64(at)>>wheelShift > n {
			at = Time((n + 1) << wheelShift)
		}
		best = min(best, at)
	}
	return best
}

// ahead returns how many slots after cur the first slot in use lies; some slot must be.
func (w *wheel) ahead() int {
	s := int(w.cur & wheelMask)
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
	to := int64(now) >> wheelShift
	if to < w.cur {
		return due
	}
	from := w.cur
	if w.early > now && !w.dirty || w.armed == 0 {
		// Nothing is due. Slots passed hold parked timers only; they are placed when one is due.
		if to-from < wheelSlots/2 {
			return due
		}
	}
	w.cur = to
	last := min(to, from+wheelSlots-1)
	for n := from; n <= last; n++ {
		s := int32(n & wheelMask)
		if w.bits[s>>6] == 0 && n&63 == 0 && n+63 <= last {
			n += 63
			continue
		}
		if w.bits[s>>6]&(1<<(s&63)) == 0 {
			continue
		}
		due = w.drain(s, now, due)
	}
	w.dirty = true
	return due
}

// drain takes slot s apart: due timers go to due, the others are placed anew.
func (w *wheel) drain(s int32, now Time, due []int32) []int32 {
	i := w.slot[s]
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
