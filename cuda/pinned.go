package cuda

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"
)

// Slab is a block of host memory for copies. It is pinned, or pageable if the pool has reached its bound. Copies work
// with both; a pageable slab is several times slower and does not overlap with compute.
type Slab struct {
	dev    *Device
	p      unsafe.Pointer
	bytes  int64 // the size that the caller requested
	class  int
	pinned bool
	free   bool // under pool.mu; detects a second Free
}

// Bytes returns the slab's memory; it is not zeroed.
func (s *Slab) Bytes() []byte { return unsafe.Slice((*byte)(s.p), s.bytes) }

// Pinned reports whether copies of this slab overlap with compute.
func (s *Slab) Pinned() bool { return s.pinned }

// Free returns the slab to the pool; no copy may still use it. A second Free is ignored.
func (s *Slab) Free() {
	if s != nil {
		s.dev.pinned.putSlab(s)
	}
}

// PinnedStats are the counts of the pool. All are bytes except the last three.
type PinnedStats struct {
	Held, InUse, HighWater, Max int64
	DriverAllocs                int64 // slabs that the driver pinned
	Reused                      int64 // slabs served from the pool
	Fallbacks                   int64 // slabs that are pageable because of the bound
}

// PinnedStats returns the pool's counts now.
func (d *Device) PinnedStats() PinnedStats {
	p := &d.pinned
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// AllocHost returns a slab of at least bytes: pinned if the bound allows it, otherwise pageable and counted. After
// warm-up it allocates nothing.
func (d *Device) AllocHost(bytes int64) (*Slab, error) {
	if err := d.checkUsable("alloc host"); err != nil {
		return nil, err
	}
	if bytes <= 0 || bytes > slabBytesMax {
		return nil, &Error{Op: fmt.Sprintf("alloc of %d bytes of host memory (1 to %d)", bytes, int64(slabBytesMax)), Code: CodeInvalidValue}
	}
	return d.pinned.getSlab(bytes)
}

// allocPageable returns a slab that is not pinned, for comparison.
func (d *Device) allocPageable(bytes int64) (*Slab, error) {
	if err := d.checkUsable("alloc host"); err != nil {
		return nil, err
	}
	if bytes <= 0 || bytes > slabBytesMax {
		return nil, &Error{Op: fmt.Sprintf("alloc of %d bytes of host memory (1 to %d)", bytes, int64(slabBytesMax)), Code: CodeInvalidValue}
	}

	// A slab has the size of its class, whether pinned or not, because putSlab counts by class.
	class := slabClass(bytes)
	ptr, c := d.drv.allocHost(slabClassBytes(class), false)
	if c != CodeSuccess {
		return nil, d.checkCode(c, fmt.Sprintf("alloc of %d bytes of host memory", bytes))
	}

	d.live.hostSlabs.Add(1)
	return &Slab{dev: d, p: ptr, bytes: bytes, class: class}, nil
}

// Size classes: four to each power of two, so that at most a fifth of a slab is unused.
const (
	slabBytesMin = 4 << 10
	slabBytesMax = 1 << 36
	slabClasses  = 4*24 + 1
)

// slabClass returns the smallest class that holds bytes.
func slabClass(bytes int64) int {
	if bytes <= slabBytesMin {
		return 0
	}
	power := bits.Len64(uint64(bytes-1)) - 1 // 2^power < bytes ≤ 2^(power+1)
	quarter := int64(1) << (power - 2)
	steps := (bytes - int64(1)<<power + quarter - 1) / quarter // 1 to 4
	return (power-12)*4 + int(steps)
}

// slabClassBytes returns a class's size.
func slabClassBytes(class int) int64 {
	power := int64(slabBytesMin) << (class / 4)
	return power + power/4*int64(class%4)
}

// pinnedPool keeps freed slabs by class, because pinning locks pages and is slow.
type pinnedPool struct {
	dev   *Device
	mu    sync.Mutex
	idle  [slabClasses][]*Slab
	stats PinnedStats
}

func (p *pinnedPool) init(d *Device, bytesMax int64) { p.dev, p.stats.Max = d, bytesMax }

func (p *pinnedPool) getSlab(bytes int64) (*Slab, error) {
	class := slabClass(bytes)
	size := slabClassBytes(class)
	p.mu.Lock()
	defer p.mu.Unlock()

	if n := len(p.idle[class]); n > 0 {
		s := p.idle[class][n-1]
		p.idle[class] = p.idle[class][:n-1]
		p.stats.Reused++
		p.lendSlab(s, bytes, size)
		return s, nil
	}

	// Below the bound pin a new slab, even if idle slabs of other classes must be unpinned.
	if p.makePinnedRoom(size) {
		if s := p.pinSlab(class, size); s != nil {
			p.lendSlab(s, bytes, size)
			return s, nil
		}
	}

	// Pageable memory is slower to copy from, but it works.
	s, err := p.dev.allocPageable(bytes)
	if err == nil {
		p.stats.Fallbacks++
	}
	return s, err
}

// makePinnedRoom makes space for size under the bound by unpinning idle slabs of other classes.
func (p *pinnedPool) makePinnedRoom(size int64) bool {
	// Start with the largest, so that the fewest slabs must be pinned again later.
	for class := slabClasses - 1; class >= 0 && p.stats.Held+size > p.stats.Max; class-- {
		for len(p.idle[class]) > 0 && p.stats.Held+size > p.stats.Max {
			p.unpinIdle(class)
		}
	}
	return p.stats.Held+size <= p.stats.Max
}

// pinSlab asks the driver for a pinned slab. If the driver has no more memory, it gives up the idle slabs and asks
// once more.
func (p *pinnedPool) pinSlab(class int, size int64) *Slab {
	ptr, c := p.dev.drv.allocHost(size, true)
	if c == CodeOutOfMemory {
		for class := range p.idle {
			for len(p.idle[class]) > 0 {
				p.unpinIdle(class)
			}
		}
		ptr, c = p.dev.drv.allocHost(size, true)
	}
	if c != CodeSuccess {
		p.dev.checkCode(c, "pin host memory") // remembers a sticky code
		return nil
	}

	p.stats.Held += size
	p.stats.DriverAllocs++
	p.dev.live.pinnedBytes.Add(size)
	return &Slab{dev: p.dev, p: ptr, class: class, pinned: true}
}

func (p *pinnedPool) lendSlab(s *Slab, bytes, size int64) {
	s.bytes, s.free = bytes, false
	p.stats.InUse += size
	p.stats.HighWater = max(p.stats.HighWater, p.stats.InUse)
	p.dev.live.hostSlabs.Add(1)
}

func (p *pinnedPool) putSlab(s *Slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.free {
		return
	}

	s.free = true
	p.dev.live.hostSlabs.Add(-1)

	size := slabClassBytes(s.class)
	// Pageable slabs cost no locked pages, so they are not kept.
	if !s.pinned {
		p.dev.releaseLater(release{host: s.p, bytes: size})
		return
	}

	p.stats.InUse -= size
	p.idle[s.class] = append(p.idle[s.class], s)

	// Close has already emptied the pool, so a slab that is freed later goes to the driver at once.
	if p.dev.closed.Load() {
		p.unpinIdle(s.class)
	}
}

// unpinIdle returns the newest idle slab of a class to the driver.
func (p *pinnedPool) unpinIdle(class int) {
	n := len(p.idle[class]) - 1
	s := p.idle[class][n]
	p.idle[class][n] = nil
	p.idle[class] = p.idle[class][:n]

	size := slabClassBytes(class)
	p.dev.releaseLater(release{host: s.p, bytes: size, pinned: true})

	p.stats.Held -= size
	p.dev.live.pinnedBytes.Add(-size)
}

// trimIdle returns all idle slabs to the driver.
func (p *pinnedPool) trimIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class := range p.idle {
		for len(p.idle[class]) > 0 {
			p.unpinIdle(class)
		}
	}
}
