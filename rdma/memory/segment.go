package memory

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Segment is one memfd of a pool: slots of one size class. Only its owner may write it: the seal F_SEAL_FUTURE_WRITE
// leaves peers that map it with read access only, and F_SEAL_SHRINK protects readers from truncation.
type Segment struct {
	index   int
	fd      int
	mem     []byte // the whole mapping
	stride  int    // bytes from slot to slot: a head, then the size class
	bufs    []Buffer
	given   atomic.Bool // some peer has access to it
	exposed atomic.Bool // some peer may READ it over verbs
	live    int         // buffers in use; guarded by the pool's lock
}

const (
	HeadBytes  = 64 // before the bytes of a slot; the entry is its last part
	EntryBytes = 16 // key u64, length u64
	pageBytes  = 4096
	hugeBytes  = 2 << 20
)

// The owner does not see a READ over verbs, and a card may take one message's bytes in any order. So a reader trusts
// an entry that came with the bytes only if the whole READ took less than ProofMax, and otherwise READs the entry
// once more. The owner waits for the longer quarantine between the end of an offer and the next write of its bytes,
// unless the reader has answered.
const (
	ProofMax   = 2 * time.Millisecond
	quarantine = 5 * time.Millisecond
)

// segmentSeals are the seals that a mapped segment must have, for giver and taker.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// Layout returns the segment's number and layout.
func (s *Segment) Layout() Layout {
	return Layout{Index: s.index, Stride: s.stride, Slots: len(s.bufs)}
}

// Memory returns the whole mapping, for registration with a device.
func (s *Segment) Memory() []byte { return s.mem }

// File returns the descriptor of the segment's memfd: its holder may map the segment for reading.
func (s *Segment) File() int { return s.fd }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// newSegment maps a segment of slots for class bytes each and touches its pages. room is how much may be mapped: huge
// pages are used if they fit.
func newSegment(p *Pool, index, class, slots int, room int64) (*Segment, error) {
	stride := HeadBytes + class
	fd, mem, err := mapSegment(roundUp(slots*stride, pageBytes), room)
	if err != nil {
		return nil, err
	}

	// A slot's head precedes its bytes, so that one READ brings both.
	s := &Segment{index: index, fd: fd, mem: mem, stride: stride, bufs: make([]Buffer, slots)}
	for i := range s.bufs {
		b := &s.bufs[i]
		at := HeadBytes + i*stride
		b.pool, b.seg, b.slot = p, s, i
		b.mem = mem[at : at+class : at+class]
	}
	return s, nil
}

func mapSegment(size int, room int64) (fd int, mem []byte, err error) {
	if huge := roundUp(size, hugeBytes); huge-size <= size/4 && int64(huge) <= room {
		if fd, mem, err = mapMemfd(huge, unix.MFD_HUGETLB); err == nil {
			return fd, mem, nil
		}
	}
	return mapMemfd(size, 0)
}

func mapMemfd(size, flags int) (int, []byte, error) {
	fd, err := unix.MemfdCreate("downbeat-rdma", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return -1, nil, fmt.Errorf("memfd_create: %w", err)
	}

	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("size memfd to %d bytes: %w", size, err)
	}

	// Touch the pages now, so that no request waits for them later.
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("map %d bytes: %w", size, err)
	}

	// Sealed, a segment can neither shrink under its readers nor be written by them.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, segmentSeals); err != nil {
		unix.Munmap(mem)
		unix.Close(fd)
		return -1, nil, fmt.Errorf("seal memfd: %w", err)
	}
	return fd, mem, nil
}

// Sealable returns why this host has no memory that peers can map; nil if it has.
func Sealable() error {
	fd, mem, err := mapMemfd(pageBytes, 0)
	if err != nil {
		return err
	}
	unix.Munmap(mem)
	unix.Close(fd)
	return nil
}

// entry returns the words of a slot's entry.
func (s *Segment) entry(slot int) (key, length *atomic.Uint64) { return entryAt(s.mem, slot, s.stride) }

func entryAt(mem []byte, slot, stride int) (key, length *atomic.Uint64) {
	at := slot*stride + HeadBytes - EntryBytes
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at])), (*atomic.Uint64)(unsafe.Pointer(&mem[at+8]))
}

func (s *Segment) unmap() {
	unix.Munmap(s.mem)
	unix.Close(s.fd)
	s.mem, s.fd = nil, -1
}
