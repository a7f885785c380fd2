package rdma

import (
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	classMin     = 1 << 10 // bytes of the smallest size class
	classesMax   = 4 * 17  // four per power of two, up to BufferMax
	segmentBytes = 2 << 20
	segmentLarge = 32 << 20
)

// pool owns a node's registered memory: segments of one size class each, and their free buffers.
type pool struct {
	bound int64
	pin   func(*segment) error // registers a new segment with verbs, or reports why not; nil without
	unpin func(*segment)       // undoes it
	now   func() time.Duration // the node's clock
	log   *slog.Logger
	segs  atomic.Pointer[[]*segment]

	mu      sync.Mutex // protects all below and the growing of segs
	free    [classesMax][]*Buffer
	limbo   [classesMax][]*Buffer // freed while a READ may be under way; oldest first
	mapped  int64                 // bytes of all slots, without their heads
	closed  bool
	rng     *rand.ChaCha8 // nonces of keys: not to be guessed by a peer
	rngLock sync.Mutex    // protects rng; apart from mu, so that Offer never waits for a mapping

	live, offers, liveBytes atomic.Int64
	inLimbo                 atomic.Int64 // buffers
}

func newPool(bound int64, seed [32]byte, now func() time.Duration, log *slog.Logger) *pool {
	p := &pool{bound: bound, rng: rand.NewChaCha8(seed), now: now, log: log}
	p.segs.Store(&[]*segment{})
	return p
}

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

// alloc takes a buffer. Where memory is short and one is about to leave quarantine, it waits for that
// one if it may.
func (p *pool) alloc(size int, mayWait bool) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: buffer of %d bytes; allowed are 1 to %d", ErrInvalid, size, BufferMax)
	}
	if size > BufferMax {
		return nil, fmt.Errorf("%w: buffer of %d bytes; allowed are 1 to %d", ErrTooLarge, size, BufferMax)
	}
	class, stride := classOf(size)
	p.mu.Lock()
	for len(p.free[class]) == 0 && !p.settle(class) {
		err := p.grow(class, stride)
		if err == nil {
			break
		}
		if len(p.limbo[class]) == 0 || !mayWait {
			p.mu.Unlock()
			return nil, err
		}
		until := time.Duration(p.limbo[class][0].until.Load())
		p.mu.Unlock() // memory is short: better a few ms late than not at all
		time.Sleep(until - p.now())
		p.mu.Lock()
	}
	last := len(p.free[class]) - 1
	b := p.free[class][last]
	p.free[class] = p.free[class][:last]
	b.seg.live++
	p.mu.Unlock()
	b.size = size
	b.until.Store(0)
	b.held.Store(true)
	p.live.Add(1)
	p.liveBytes.Add(int64(stride))
	return b, nil
}

// settle frees the buffers of a class whose quarantine is over, and tells whether there were any.
// p.mu is held.
func (p *pool) settle(class int) bool {
	due, now := 0, int64(p.now())
	for due < len(p.limbo[class]) && p.limbo[class][due].until.Load() <= now {
		due++
	}
	p.free[class] = append(p.free[class], p.limbo[class][:due]...)
	p.limbo[class] = p.limbo[class][:copy(p.limbo[class], p.limbo[class][due:])]
	p.inLimbo.Add(-int64(due))
	return due > 0
}

// grow maps one more segment for a class. p.mu is held: growing is rare and must not run twice.
func (p *pool) grow(class, stride int) error {
	if p.closed {
		return ErrClosed
	}
	pitch := headBytes + stride
	slots := max(1, min(max(segmentBytes, min(8*pitch, segmentLarge))/pitch, slotsMax))
	if p.mapped+int64(stride) > p.bound {
		p.shrink(stride)
	}
	segs := *p.segs.Load()
	for ; slots > 1 && p.mapped+int64(slots*stride) > p.bound; slots /= 2 {
	}
	index := slices.Index(segs, nil)
	if index < 0 {
		index = len(segs)
	}
	if p.mapped+int64(slots*stride) > p.bound || index == segmentsMax {
		return fmt.Errorf("%w: %d bytes asked, %d of %d bytes registered", ErrNoMemory, stride, p.mapped, p.bound)
	}
	s, err := newSegment(p, index, stride, slots, p.bound-p.mapped)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	if p.pin != nil {
		if err := p.pin(s); err != nil { // usable all the same: its bytes travel over tcp
			p.log.Warn("memory not registered: reads of it and into it go over tcp", "err", err)
		}
	}
	grown := slices.Clone(segs)
	if index == len(grown) {
		grown = append(grown, nil)
	}
	grown[index] = s
	p.segs.Store(&grown)
	p.mapped += int64(slots * stride)
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

// shrink unmaps segments of other classes that nobody uses, until need bytes fit, so that memory
// follows a change of sizes. A segment that a peer has access to stays: its bytes may be read. p.mu
// is held.
func (p *pool) shrink(need int) {
	segs := slices.Clone(*p.segs.Load())
	for i, s := range segs {
		if p.mapped+int64(need) <= p.bound {
			break
		}
		if s == nil || s.live > 0 || s.given.Load() {
			continue
		}
		class, _ := classOf(s.stride - headBytes)
		p.free[class] = slices.DeleteFunc(p.free[class], func(b *Buffer) bool { return b.seg == s })
		segs[i] = nil
		p.segs.Store(ptr(slices.Clone(segs)))
		if p.unpin != nil {
			p.unpin(s)
		}
		p.mapped -= int64(len(s.bufs) * (s.stride - headBytes))
		s.unmap()
	}
}

func ptr[T any](v T) *T { return &v }

// reclaim puts a buffer back that nobody holds and nobody reads.
func (p *pool) reclaim(b *Buffer) {
	class, stride := classOf(b.size)
	p.live.Add(-1)
	p.liveBytes.Add(-int64(stride))
	p.mu.Lock()
	b.seg.live--
	if b.until.Load() != 0 {
		p.limbo[class] = append(p.limbo[class], b)
		p.inLimbo.Add(1)
	} else {
		p.free[class] = append(p.free[class], b)
	}
	p.mu.Unlock()
}

// nonce returns the unguessable part of a key.
func (p *pool) nonce() uint64 {
	p.rngLock.Lock()
	v := p.rng.Uint64()
	p.rngLock.Unlock()
	return v &^ (1<<(64-nonceBits) - 1) &^ lateKey
}

// find returns the buffer of a key, pinned against reuse until unpin, or nil if the range was not
// offered under it.
func (p *pool) find(r Remote) *Buffer {
	segs := *p.segs.Load()
	at, slot := keySegment(r.Key), keySlot(r.Key)
	if at >= len(segs) || segs[at] == nil || slot >= len(segs[at].bufs) || r.Key == 0 {
		return nil
	}
	b := &segs[at].bufs[slot]
	b.readers.Add(1)
	if b.key.Load() != r.Key || r.Offset > uint64(b.size) || uint64(r.Length) > uint64(b.size)-r.Offset {
		b.unpin()
		return nil
	}
	return b
}

// segment returns the segment of a live key, to be given to a peer (over verbs or not), or nil. From
// then on it stays.
func (p *pool) segment(key uint64, verbs bool) *segment {
	b := p.find(Remote{Key: key})
	if b == nil {
		return nil
	}
	defer b.unpin()
	b.seg.given.Store(true)
	b.seg.exposed.Store(b.seg.exposed.Load() || verbs)
	return b.seg
}

// close withdraws every offer and unmaps the memory, unless buffers are still held: then it leaves
// the memory mapped, because a slice may be in use, and says so.
func (p *pool) close(wait time.Duration) error {
	p.mu.Lock()
	p.closed = true
	segs := *p.segs.Load()
	p.mu.Unlock()
	segs = slices.DeleteFunc(slices.Clone(segs), func(s *segment) bool { return s == nil })
	for _, s := range segs {
		for i := range s.bufs {
			s.bufs[i].retract()
		}
	}
	for end := time.Now().Add(wait); p.live.Load() != 0 && time.Now().Before(end) && !p.anyHeld(); {
		time.Sleep(time.Millisecond)
	}
	if n := p.live.Load(); n != 0 {
		return fmt.Errorf("close: %d buffers were not freed; their memory stays mapped", n)
	}
	p.segs.Store(&[]*segment{})
	for _, s := range segs {
		s.unmap()
	}
	return nil
}

// anyHeld tells whether some buffer still waits for its owner's Free (and not for a reader).
func (p *pool) anyHeld() bool {
	for _, s := range *p.segs.Load() {
		if s == nil {
			continue
		}
		for i := range s.bufs {
			if s.bufs[i].held.Load() {
				return true
			}
		}
	}
	return false
}
