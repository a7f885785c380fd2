package rdma

import (
	"runtime"
	"sync/atomic"
	"time"
)

// freeing marks, in Buffer.readers, a buffer that its owner has freed.
const freeing = int64(1) << 40

// Buffer is a piece of registered memory. Its owner is whoever called Alloc, until Free.
type Buffer struct {
	pool *pool
	seg  *segment
	slot int
	mem  []byte // the whole slot
	size int    // asked by the owner; written by alloc, before any offer

	held    atomic.Bool   // between Alloc and Free
	key     atomic.Uint64 // live offer, 0 when none; mirrored in the segment's table
	readers atomic.Int64  // peers' reads under way, plus freeing
	until   atomic.Int64  // node time before which a READ over verbs may still be taking the bytes; 0: none is
}

// Bytes is the buffer's memory; len is the size asked for.
func (b *Buffer) Bytes() []byte { return b.mem[:b.size:b.size] }

// Offer makes the buffer readable by peers until Withdraw or Free. A second Offer gives a new key.
// The owner must not write the buffer while it is offered.
func (b *Buffer) Offer() Remote {
	b.retract()
	r := Remote{Key: b.newKey(0), Length: uint32(b.size)}
	b.show(r.Key)
	return r
}

// Reserve names the offer that Publish will make: the Remote can be told to peers while the buffer
// is still being filled. A read before Publish fails with ErrNotOffered. It ends the offer before,
// as Withdraw does.
func (b *Buffer) Reserve() Remote {
	if b.key.Load() != 0 {
		b.Withdraw()
	}
	return Remote{Key: b.newKey(lateKey), Length: uint32(b.size)}
}

// Publish makes the buffer readable under what Reserve returned, until Withdraw or Free. The owner
// must not write the buffer from then on.
func (b *Buffer) Publish(r Remote) {
	b.retract()
	b.show(r.Key)
}

// newKey makes a key of a nonce never used before. kind is 0 or lateKey.
func (b *Buffer) newKey(kind uint64) uint64 {
	for {
		nonce := b.pool.nonce()
		if nonce != 0 { // or key 0 could be valid
			return nonce | kind | uint64(b.seg.index)<<slotBits | uint64(b.slot)
		}
	}
}

// show makes a key live.
func (b *Buffer) show(key uint64) {
	k, length := b.seg.entry(b.slot)
	length.Store(uint64(b.size))
	k.Swap(key) // a full barrier: the bytes written before are seen by who sees the key
	b.key.Store(key)
	b.pool.offers.Add(1)
}

// retract makes the live key, if any, invalid. Reads under way go on.
func (b *Buffer) retract() {
	if b.key.Swap(0) == 0 {
		return
	}
	k, _ := b.seg.entry(b.slot)
	k.Swap(0) // a full barrier: later writes to the bytes are not seen under the old key
	if b.seg.exposed.Load() {
		b.until.Store(int64(b.pool.now() + quarantine))
	}
	b.pool.offers.Add(-1)
}

// Withdraw ends the offer: a read that begins after it fails with ErrNotOffered. It returns when
// none is under way (a peer that stalls in one is cut after Config.Stall; reads over verbs cannot be
// seen and are given 5 ms), so it must not be called from Receive or from a Read's done; Free may. A
// read over shm that was under way fails.
func (b *Buffer) Withdraw() {
	b.retract()
	b.unread()
	if until := b.until.Swap(0); until != 0 {
		time.Sleep(time.Duration(until) - b.pool.now())
	}
}

// WithdrawAnswered is Withdraw for a caller who knows that whoever was told of the buffer has read
// it, by its answer. So it need not wait for reads that cannot be seen.
func (b *Buffer) WithdrawAnswered() {
	b.retract()
	b.unread()
	b.until.Store(0)
}

// unread returns when nobody reads that the owner serves.
func (b *Buffer) unread() {
	for i := 0; b.readers.Load()&(freeing-1) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// Free ends the offer and gives the buffer back. It never waits: a buffer that is being read, or may
// be, is reused only after the read. A second Free panics.
func (b *Buffer) Free() {
	if !b.held.Swap(false) {
		panic("rdma: buffer freed twice")
	}
	b.retract()
	b.readers.Add(freeing)
	b.reuse()
}

// freeAnswered is Free for an owner that knows that nobody reads over verbs any more.
func (b *Buffer) freeAnswered() {
	b.retract()
	b.until.Store(0)
	b.Free()
}

// unpin ends a read that pool.find began.
func (b *Buffer) unpin() {
	if b.readers.Add(-1) == freeing {
		b.reuse()
	}
}

// reuse gives the buffer back if it is freed and no reader is left. Of the owner and the last
// reader, exactly one succeeds.
func (b *Buffer) reuse() {
	if b.readers.CompareAndSwap(freeing, 0) {
		b.pool.reclaim(b)
	}
}
