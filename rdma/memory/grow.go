package memory

import (
	"fmt"
	"math/bits"
	"slices"
)

const (
	classMin     = 1 << 10 // bytes of the smallest size class
	classesMax   = 4 * 17  // four per power of two, up to BufferMax
	segmentBytes = 2 << 20
	segmentLarge = 32 << 20
)

// classOf returns the size class that holds size bytes and the bytes it holds: 2^k·{4,5,6,7}/4 KiB.
func classOf(size int) (class, stride int) {
	if size <= classMin {
		return 0, classMin
	}
	k := bits.Len(uint(size-1)) - 1 // 2^k < size ≤ 2^(k+1)
	quarter := 1 << (k - 2)
	q := (size - 1 - 1<<k) / quarter // 0..3: fits 2^k + (q+1)·quarter
	return (k-10)*4 + q + 1, 1<<k + (q+1)*quarter
}

// growClass maps one more segment for a class. p.mu is held: growing is rare and must not run concurrently.
func (p *Pool) growClass(class, stride int) error {
	if p.closed {
		return ErrClosed
	}

	// A segment holds at least eight buffers, if the limit allows, and 2 MiB, so that small buffers need few
	// mappings.
	pitch := HeadBytes + stride
	slots := max(1, min(max(segmentBytes, min(8*pitch, segmentLarge))/pitch, SlotsMax))
	if p.mapped+int64(stride) > p.bound {
		p.unmapUnused(stride)
	}

	segs := *p.segs.Load()
	for ; slots > 1 && p.mapped+int64(slots*stride) > p.bound; slots /= 2 {
	}

	// Numbers are few, and part of every key: those of unmapped segments are reused.
	index := slices.Index(segs, nil)
	if index < 0 {
		index = len(segs)
	}
	if p.mapped+int64(slots*stride) > p.bound || index == SegmentsMax {
		return fmt.Errorf("%w: %d bytes asked, %d of %d bytes registered", ErrNoMemory, stride, p.mapped, p.bound)
	}

	s, err := newSegment(p, index, stride, slots, p.bound-p.mapped)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}

	// Without a registration the segment is still usable: its bytes travel over tcp.
	if p.device != nil {
		if err := p.device.Register(s); err != nil {
			p.log.Warn("memory not registered: reads of it and into it go over tcp", "err", err)
		}
	}

	// Readers look up segments without the lock, so the list is replaced.
	grown := slices.Clone(segs)
	if index == len(grown) {
		grown = append(grown, nil)
	}
	grown[index] = s
	p.segs.Store(&grown)
	p.mapped += int64(slots * stride)

	// The list of free buffers has room for all buffers of the class, so that reclaim allocates nothing.
	if cap(p.free[class]) < len(p.free[class])+slots {
		wider := make([]*Buffer, len(p.free[class]), 2*cap(p.free[class])+slots)
		copy(wider, p.free[class])
		p.free[class] = wider
	}

	for i := len(s.bufs) - 1; i >= 0; i-- {
		p.free[class] = append(p.free[class], &s.bufs[i])
	}
	return nil
}

// unmapUnused unmaps unused segments of other classes until need bytes fit, so that memory follows a change of sizes. A
// segment that a peer has access to stays, as its bytes may be read. p.mu is held.
func (p *Pool) unmapUnused(need int) {
	segs := slices.Clone(*p.segs.Load())
	for i, s := range segs {
		if p.mapped+int64(need) <= p.bound {
			break
		}
		if s == nil || s.live > 0 || s.given.Load() {
			continue
		}

		// Without held buffers no key of it is live: later lookups find nothing.
		class, _ := classOf(s.stride - HeadBytes)
		p.free[class] = slices.DeleteFunc(p.free[class], func(b *Buffer) bool { return b.seg == s })
		segs[i] = nil
		kept := slices.Clone(segs)
		p.segs.Store(&kept)
		if p.device != nil {
			p.device.Forget(s)
		}

		p.mapped -= int64(len(s.bufs) * (s.stride - HeadBytes))
		s.unmap()
	}
}
