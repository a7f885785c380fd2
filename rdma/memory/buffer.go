package memory

import (
	"runtime"
	"sync/atomic"
	"time"
)

// freeing in Buffer.readers marks a buffer that its owner has freed.
const freeing = int64(1) << 40

// takeMax is how long a withdrawal waits for reads from the buffer itself, before it asks for a copy.
const takeMax = 2 * time.Millisecond

// Buffer is a piece of registered memory. The caller of Alloc owns it until Free.
type Buffer struct {
	pool *Pool
	seg  *Segment
	slot int
	mem  []byte // the whole slot
	data []byte // the offered bytes: of mem, or lent; written by Alloc and Lend, before any offer
	kind uint64 // kind of its keys: 0 or lentKey; written with data

	held    atomic.Bool   // between Alloc and Free
	key     atomic.Uint64 // live offer; 0: none. Mirrored in the segment's entry
	readers atomic.Int64  // pins of peers' reads in progress, plus freeing
	until   atomic.Int64  // node time until which a READ over verbs may still be taking the bytes; 0: none
}

// Bytes returns the buffer's memory, of the requested length. For a lent buffer it returns the lent bytes.
func (b *Buffer) Bytes() []byte { return b.data }

// Offer makes the buffer readable by peers until Withdraw or Free. A second Offer gives a new key.
// The owner must not write the buffer while it is offered.
func (b *Buffer) Offer() Remote {
	b.withdrawKey()
	r := Remote{Key: b.newKey(b.kind), Length: uint32(len(b.data))}
	b.publishKey(r.Key)
	return r
}

// Reserve returns the Remote of the offer that Publish will make, so that peers can be told while the buffer is still
// being filled. A read before Publish fails with ErrNotOffered. It ends the previous offer, as Withdraw does.
func (b *Buffer) Reserve() Remote {
	if b.key.Load() != 0 {
		b.Withdraw()
	}
	return Remote{Key: b.newKey(lateKey | b.kind), Length: uint32(len(b.data))}
}

// Publish makes the buffer readable under the Remote of Reserve, until Withdraw or Free. The owner must not write the
// buffer from then on.
func (b *Buffer) Publish(r Remote) {
	b.withdrawKey()
	b.publishKey(r.Key)
}

// Withdraw ends the offer: later reads fail with ErrNotOffered. It returns when the buffer belongs to the owner
// again, within some ms whatever a peer does. A read over a byte stream in progress gets the rest from a copy; reads
// over verbs cannot be seen and are given 5 ms; one over shm fails. It may sleep, so it must not be called from
// Receive or from a Read's done; Free may.
func (b *Buffer) Withdraw() {
	b.withdrawKey()
	b.awaitReaders()

	// Reads over verbs leave no trace here; only their time limit is known.
	if until := b.until.Swap(0); until != 0 {
		time.Sleep(time.Duration(until) - b.pool.now())
	}
}

// WithdrawAnswered is Withdraw for a caller who knows by an answer that every reader of the buffer has finished. So
// it need not wait for reads that cannot be seen.
func (b *Buffer) WithdrawAnswered() {
	b.withdrawKey()
	b.awaitReaders()
	b.until.Store(0)
}

// Free ends the offer and frees the buffer. It never waits: a buffer that is being read, or may be, is reused only
// after the read. A second Free panics.
func (b *Buffer) Free() {
	if !b.held.Swap(false) {
		panic("rdma: buffer freed twice")
	}

	b.withdrawKey()
	b.readers.Add(freeing)
	b.returnIfUnused()
}

// FreeAnswered is Free for an owner who knows that nobody reads the buffer over verbs any more: it needs no
// quarantine.
func FreeAnswered(b *Buffer) {
	b.withdrawKey()
	b.until.Store(0)
	b.Free()
}

// newKey makes a key from a nonce that was never used before, marked with kind.
func (b *Buffer) newKey(kind uint64) uint64 {
	for {
		nonce := b.pool.newNonce()
		if nonce != 0 { // otherwise key 0 could be valid
			return nonce | kind | uint64(b.seg.index)<<slotBits | uint64(b.slot)
		}
	}
}

// publishKey makes a key live.
func (b *Buffer) publishKey(key uint64) {
	// Processes that map the segment must not find lent bytes there, so the slot's entry is unchanged.
	if b.kind != lentKey {
		entryKey, entryLength := b.seg.entry(b.slot)
		entryLength.Store(uint64(len(b.data)))
		entryKey.Swap(key) // a full barrier: a reader that sees the key sees the bytes written before
	}
	b.key.Store(key)
	b.pool.offers.Add(1)
}

// withdrawKey invalidates the live key, if there is one. Reads in progress continue.
func (b *Buffer) withdrawKey() {
	if b.key.Swap(0) == 0 {
		return
	}

	entryKey, _ := b.seg.entry(b.slot)
	entryKey.Swap(0) // a full barrier: later writes to the bytes are not seen under the old key
	if b.seg.exposed.Load() {
		b.until.Store(int64(b.pool.now() + quarantine))
	}
	b.pool.offers.Add(-1)
}

// awaitReaders returns when no read that the owner serves takes bytes from the buffer. Slow peers get the rest from a
// copy.
func (b *Buffer) awaitReaders() {
	began := time.Duration(0)
	for i := 0; b.readers.Load()&(freeing-1) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}

		// Only a long wait reads the clock: a sound peer has its bytes by now.
		time.Sleep(20 * time.Microsecond)
		if began == 0 {
			began = b.pool.now()
		} else if b.pool.detach != nil && b.pool.now()-began > takeMax {
			b.pool.detach(b)
		}
	}
}

// returnIfUnused returns the buffer to the pool if it is freed and no reader is left. Of the owner and the last reader,
// exactly one succeeds.
func (b *Buffer) returnIfUnused() {
	if b.readers.CompareAndSwap(freeing, 0) {
		b.pool.reclaim(b)
	}
}
