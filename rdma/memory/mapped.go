package memory

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Mapped is a segment of another process, mapped here for reading.
//
// This process sees everything in the segment, offered or not, until Unmap. There are no shared locks that a crashed
// owner could leave locked: keys are checked before and after the copy.
type Mapped struct {
	mem     []byte
	layout  Layout
	readers atomic.Int64 // reads in progress; negative once it is to be unmapped
}

// leaving is what Unmap adds to a segment's readers: far more than can ever read at once.
const leaving = int64(-1) << 40

// Map maps a peer's segment, after checking that its owner cannot shrink it or let others write. The descriptor still
// belongs to the caller. An error other than ErrProtocol comes from this host.
func Map(fd int, l Layout) (*Mapped, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&segmentSeals != segmentSeals {
		return nil, fmt.Errorf("%w: segment without seals", ErrProtocol)
	}

	// A mapping beyond the file's end would be a fault at the first read there.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: segment: %w", ErrProtocol, err)
	}
	size := int(st.Size)
	if need := roundUp(l.Bytes(), pageBytes); size < need || size > max(need, roundUp(need, hugeBytes)) {
		return nil, fmt.Errorf("%w: segment %+v in %d bytes", ErrProtocol, l, size)
	}

	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map segment of %d bytes: %w", size, err)
	}
	return &Mapped{mem: mem, layout: l}, nil
}

// Enter begins a read; Leave ends it. In between the segment stays mapped. Enter returns false, and needs no Leave,
// if the segment is being unmapped.
func (m *Mapped) Enter() bool {
	if m.readers.Add(1) < 0 {
		m.Leave()
		return false
	}
	return true
}

// Leave ends a read; the last reader unmaps a segment that is to be unmapped.
func (m *Mapped) Leave() {
	if m.readers.Add(-1) == leaving {
		m.unmap()
	}
}

// Copy copies the bytes of r, and reports whether they were offered all the while. The caller has entered, and
// len(dst) is r.Length.
func (m *Mapped) Copy(dst []byte, r Remote) bool {
	if r.Key == 0 || !m.layout.Within(r) {
		return false
	}

	// The key is checked before as well: unoffered bytes need not be copied.
	key, length := entryAt(m.mem, r.Slot(), m.layout.Stride)
	if key.Load() != r.Key || uint64(r.Offset)+uint64(r.Length) > length.Load() {
		return false
	}

	copy(dst, m.mem[m.layout.Place(r):])
	var fence atomic.Uint64
	fence.Add(1) // the copy's loads come before the check
	return key.Load() == r.Key
}

// Unmap unmaps the segment once no reader is left. It is called once.
func (m *Mapped) Unmap() {
	m.readers.Add(leaving)
	if m.readers.Load() == leaving {
		m.unmap()
	}
}

func (m *Mapped) unmap() {
	if m.readers.CompareAndSwap(leaving, 2*leaving) {
		unix.Munmap(m.mem)
	}
}
