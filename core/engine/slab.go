package engine

import (
	"unsafe"

	"downbeat.dev/core/sched"
)

// slot is one queued request, one cache line. All of it is guarded by its partition's lock.
type slot struct {
	id       uint64 // the frontend's own
	deadline sched.Time
	key      uint64 // these three are where the input lies
	offset   uint64
	length   uint32
	margin   uint32 // ns by which the deadline was brought forward when it was queued
	front    uint32 // the frontend's number
	model    uint32
	gen      uint32 // of the slot; part of the RequestID
	next     uint32 // chain of the index, or of the free slots
	live     bool
	priority uint8
	lost     bool // a backend was lost with it once
}

var _ [64 - unsafe.Sizeof(slot{})]struct{} = [0]struct{}{}

const noSlot = ^uint32(0)

// slab holds a partition's queued requests: found by RequestID in one step, and by the frontend's
// own id through an index. Its memory is asked for at once and becomes real as it is used; slots
// are used again before new ones.
type slab struct {
	slots  []slot
	used   uint32 // slots ever used
	free   uint32 // used slots that are free, a chain
	live   int
	bucket []uint32 // slot+1; ids that follow each other lie side by side
	mask   uint32
	seed   uint64
}

func newSlab(most int, seed uint64) slab {
	n := 1024
	for n < most {
		n *= 2
	}
	s := slab{slots: make([]slot, most), free: noSlot, bucket: make([]uint32, n), mask: uint32(n - 1), seed: seed}
	hugePages(s.slots)
	hugePages(s.bucket)
	return s
}

func (s *slab) at(i uint32) *slot { return &s.slots[i] }

// get returns the slot of a request that is live.
func (s *slab) get(id sched.RequestID) (*slot, uint32) {
	i := uint32(id)
	return s.at(i), i
}

func requestID(i uint32, t *slot) sched.RequestID {
	return sched.RequestID(uint64(t.gen)<<32 | uint64(i))
}

// place hashes a frontend's id so that runs of ids stay together and a peer cannot choose runs
// that collide.
func (s *slab) place(front uint32, id uint64) uint32 {
	h := (id>>12 ^ s.seed ^ uint64(front)<<44) * 0x9E3779B97F4A7C15
	return (uint32(h>>32)<<12 + uint32(id)) & s.mask
}

// find returns the live request of a frontend, noSlot when there is none.
func (s *slab) find(front uint32, id uint64) uint32 {
	for i := s.bucket[s.place(front, id)]; i != 0; {
		t := s.at(i - 1)
		if t.id == id && t.front == front {
			return i - 1
		}
		i = t.next
	}
	return noSlot
}

// take enters a request that is not there yet and returns its slot; noSlot when the slab is full
// or, with twin, when the request is there.
func (s *slab) take(front uint32, id uint64) (i uint32, twin bool) {
	b := &s.bucket[s.place(front, id)]
	for k := *b; k != 0; {
		t := s.at(k - 1)
		if t.id == id && t.front == front {
			return noSlot, true
		}
		k = t.next
	}
	i = s.free
	if i == noSlot {
		if int(s.used) == len(s.slots) {
			return noSlot, false
		}
		i = s.used
		s.used++
		s.at(i).next = noSlot
	}
	t := s.at(i)
	s.free = t.next
	s.live++
	t.id, t.front, t.next = id, front, *b
	*b = i + 1
	t.gen++
	t.live, t.lost = true, false
	return i, false
}

// drop frees slot i.
func (s *slab) drop(i uint32) {
	t := s.at(i)
	b := &s.bucket[s.place(t.front, t.id)]
	for *b != i+1 {
		b = &s.at(*b - 1).next
	}
	*b = t.next
	t.live = false
	t.next = s.free
	s.free = i
	s.live--
}
