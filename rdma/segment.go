package rdma

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A segment is one memfd: a key table, then slots of one size class. Only its owner may write it:
// the seal F_SEAL_FUTURE_WRITE leaves peers that map it with read access alone, and F_SEAL_SHRINK
// keeps a reader safe from a file cut short under it.
//
// The key table mirrors each slot's live key and length for readers that map the segment or READ
// it over verbs. They copy first and look at the key afterwards: keys never repeat, so a key that
// still stands proves that the bytes were offered during the whole copy.
type segment struct {
	index  int
	fd     int
	mem    []byte // the whole mapping
	stride int    // bytes from slot to slot
	data   int    // where slot 0 begins
	bufs   []Buffer
	given  atomic.Bool // some peer was given access to it
	live   int         // buffers in use; the pool's lock protects it
}

const (
	slotBits    = 14
	segmentBits = 12
	nonceBits   = 64 - slotBits - segmentBits
	slotsMax    = 1 << slotBits
	segmentsMax = 1 << segmentBits
	entryBytes  = 16 // key u64, length u64
	pageBytes   = 4096
	hugeBytes   = 2 << 20
)

// keySlot and keySegment take a key apart: nonce | segment | slot.
func keySlot(key uint64) int    { return int(key & (slotsMax - 1)) }
func keySegment(key uint64) int { return int(key >> slotBits & (segmentsMax - 1)) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// newSegment maps a segment of slots × stride bytes and touches its pages.
func newSegment(p *pool, index, stride, slots int) (*segment, error) {
	data := roundUp(slots*entryBytes, pageBytes)
	size := roundUp(data+slots*stride, pageBytes)
	fd, mem, err := mapSegment(size)
	if err != nil {
		return nil, err
	}
	s := &segment{index: index, fd: fd, mem: mem, stride: stride, data: data, bufs: make([]Buffer, slots)}
	for i := range s.bufs {
		b := &s.bufs[i]
		at := data + i*stride
		b.pool, b.seg, b.slot = p, s, i
		b.mem = mem[at : at+stride : at+stride]
	}
	return s, nil
}

func mapSegment(size int) (fd int, mem []byte, err error) {
	if size%hugeBytes == 0 {
		if fd, mem, err = mapMemfd(size, unix.MFD_HUGETLB); err == nil {
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
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, segmentSeals); err != nil {
		unix.Munmap(mem)
		unix.Close(fd)
		return -1, nil, fmt.Errorf("seal memfd: %w", err)
	}
	return fd, mem, nil
}

// segmentSeals is what a mapped segment must carry, on the giving and on the taking side.
const segmentSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// entry returns the table's words of a slot.
func (s *segment) entry(slot int) (key, length *atomic.Uint64) { return tableEntry(s.mem, slot) }

func tableEntry(mem []byte, slot int) (key, length *atomic.Uint64) {
	at := slot * entryBytes
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at])), (*atomic.Uint64)(unsafe.Pointer(&mem[at+8]))
}

func (s *segment) unmap() {
	unix.Munmap(s.mem)
	unix.Close(s.fd)
	s.mem, s.fd = nil, -1
}
