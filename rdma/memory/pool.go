package memory

import (
	crand "crypto/rand"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a pool.
type Options struct {
	Bytes  int64                // limit of the buffers' memory
	Now    func() time.Duration // the owner's clock: monotonic, never 0
	Detach func(*Buffer)        // makes slow peers read a copy of a buffer, so that Withdraw ends; may be nil
	Log    *slog.Logger
}

// Registrar registers segments with a device that reads them by itself.
type Registrar interface {
	Register(*Segment) error
	Forget(*Segment)
}

// Pool owns a node's registered memory: segments of one size class each, and their free buffers.
type Pool struct {
	bound  int64
	device Registrar     // nil: none; set before the first Alloc
	detach func(*Buffer) // makes slow peers read a copy of a buffer; may be nil
	now    func() time.Duration
	log    *slog.Logger
	segs   atomic.Pointer[[]*Segment] // by the segment's number; nil: none

	mu         sync.Mutex // guards the fields below, and the growing of segs
	free       [classesMax][]*Buffer
	quarantine [classesMax][]*Buffer // freed while a READ may be in progress; oldest first
	mapped     int64                 // bytes of all slots, without their heads
	closed     bool

	nonces   *rand.ChaCha8 // unpredictable for peers
	noncesMu sync.Mutex    // guards nonces; separate from mu, so that Offer never waits for a mapping

	live, offers, liveBytes atomic.Int64
	quarantined             atomic.Int64 // buffers
}

// NewPool returns an empty pool.
func NewPool(o Options) *Pool {
	var seed [32]byte
	crand.Read(seed[:])
	p := &Pool{bound: o.Bytes, nonces: rand.NewChaCha8(seed), now: o.Now, detach: o.Detach, log: o.Log}
	p.segs.Store(&[]*Segment{})
	return p
}

// RegisterWith registers every segment with a device. It is called before the first Alloc.
func (p *Pool) RegisterWith(device Registrar) { p.device = device }

// Alloc returns a buffer of size bytes, or fails with ErrInvalid, ErrTooLarge or ErrNoMemory. If memory is short and
// a buffer is about to leave quarantine, it waits for that one. It allocates nothing after warm-up.
func (p *Pool) Alloc(size int) (*Buffer, error) { return p.takeBuffer(size, true) }

// AllocNow is Alloc that never waits.
func (p *Pool) AllocNow(size int) (*Buffer, error) { return p.takeBuffer(size, false) }

func (p *Pool) takeBuffer(size int, mayWait bool) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("%w: buffer of %d bytes; allowed are 1 to %d", ErrInvalid, size, BufferMax)
	}
	if size > BufferMax {
		return nil, fmt.Errorf("%w: buffer of %d bytes; allowed are 1 to %d", ErrTooLarge, size, BufferMax)
	}

	class, stride := classOf(size)
	p.mu.Lock()
	for len(p.free[class]) == 0 && !p.endQuarantine(class) {
		err := p.growClass(class, stride)
		if err == nil {
			break
		}
		if len(p.quarantine[class]) == 0 || !mayWait {
			p.mu.Unlock()
			return nil, err
		}

		// Memory is short: better some ms late than not at all.
		until := time.Duration(p.quarantine[class][0].until.Load())
		p.mu.Unlock()
		time.Sleep(until - p.now())
		p.mu.Lock()
	}

	// The buffer freed last is most likely in the cache.
	last := len(p.free[class]) - 1
	b := p.free[class][last]
	p.free[class] = p.free[class][:last]
	b.seg.live++
	p.mu.Unlock()

	b.data, b.kind = b.mem[:size:size], 0
	b.until.Store(0)
	b.held.Store(true)
	p.live.Add(1)
	p.liveBytes.Add(int64(stride))
	return b, nil
}

// endQuarantine frees the buffers of a class whose quarantine is over, and reports whether there were any. p.mu is
// held.
func (p *Pool) endQuarantine(class int) bool {
	// Buffers are nearly in the order of their ends, so those that are due come first.
	due, now := 0, int64(p.now())
	for due < len(p.quarantine[class]) && p.quarantine[class][due].until.Load() <= now {
		due++
	}

	p.free[class] = append(p.free[class], p.quarantine[class][:due]...)
	p.quarantine[class] = p.quarantine[class][:copy(p.quarantine[class], p.quarantine[class][due:])]
	p.quarantined.Add(-int64(due))
	return due > 0
}

// reclaim returns a buffer without owner and readers to the pool.
func (p *Pool) reclaim(b *Buffer) {
	class, stride := classOf(len(b.mem))
	p.live.Add(-1)
	p.liveBytes.Add(-int64(stride))

	// Bytes that a card may still be taking stay unwritten for a while (M2).
	p.mu.Lock()
	b.seg.live--
	if b.until.Load() != 0 {
		p.quarantine[class] = append(p.quarantine[class], b)
		p.quarantined.Add(1)
	} else {
		p.free[class] = append(p.free[class], b)
	}
	p.mu.Unlock()
}

// newNonce returns the unpredictable part of a key.
func (p *Pool) newNonce() uint64 {
	p.noncesMu.Lock()
	v := p.nonces.Uint64()
	p.noncesMu.Unlock()
	return v &^ (1<<(64-nonceBits) - 1) &^ (lateKey | lentKey)
}

// Give returns the segment of a live key, for a peer to read directly (over verbs or not); nil if the key is not
// live. From then on the segment stays.
func (p *Pool) Give(key uint64, verbs bool) *Segment {
	pin, ok := p.Find(Remote{Key: key})
	if !ok {
		return nil
	}
	defer pin.Release()
	if pin.buffer.kind == lentKey {
		return nil
	}

	// The pool keeps a given segment: a peer may read from it at any time.
	seg := pin.buffer.seg
	seg.given.Store(true)
	if verbs {
		seg.exposed.Store(true)
	}
	return seg
}

// Stats are a pool's counts. Bytes of buffers are those of their size classes.
type Stats struct {
	Live, Offers, LiveBytes int64 // buffers allocated and not freed; of these, offered ones; their bytes
	Quarantined             int64 // freed while a READ over verbs could be in progress, and not reused since
	Mapped, Bound           int64 // bytes
}

// Stats returns counts. It is not for the hot path.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	mapped := p.mapped
	p.mu.Unlock()
	return Stats{Live: p.live.Load(), Offers: p.offers.Load(), LiveBytes: p.liveBytes.Load(),
		Quarantined: p.quarantined.Load(), Mapped: mapped, Bound: p.bound}
}
