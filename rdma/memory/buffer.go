package memory

import (
	"runtime"
	"sync/atomic"
	"time"
)

// freeing marks, in Buffer.readers, a buffer that its owner has freed.
const freeing = int64(1) << 40

// takeMax is how long a withdrawal waits for bytes to be taken from the buffer itself, before it asks for a copy.
const takeMax = 2 * time.Millisecond

// Buffer is a piece of registered memory. Its owner is whoever called Alloc, until Free.
type Buffer struct {
	pool *Pool
	seg  *Segment
	slot int
	mem  []byte // the whole slot
	data []byte // what is offered: of mem, or lent; written by Alloc and Lend, before any offer
	kind uint64 // of its keys: 0 or lentKey; written with data

	held    atomic.Bool   // between Alloc and Free
	key     atomic.Uint64 // live offer, 0 when none; mirrored in the segment's entry
	readers atomic.Int64  // pins of peers' reads under way, plus freeing
	until   atomic.Int64  // node time before which a READ over verbs may still be taking the bytes; 0: none is
}

// Bytes is the buffer's memory; len is the size asked for. Of a lent one they are what was lent.
func (b *Buffer) Bytes() []byte { return b.data }

// Offer makes the buffer readable by peers until Withdraw or Free. A second Offer gives a new key.
// The owner must not write the buffer while it is offered.
func (b *Buffer) Offer() Remote {
	b.retract()
	r := Remote{Key: b.newKey(b.kind), Length: uint32(len(b.data))}
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
	return Remote{Key: b.newKey(lateKey | b.kind), Length: uint32(len(b.data))}
}

// Publish makes the buffer readable under what Reserve returned, until Withdraw or Free. The owner
// must not write the buffer from then on.
func (b *Buffer) Publish(r Remote) {
	b.retract()
	b.show(r.Key)
}

// Withdraw ends the offer: a read that begins after it fails with ErrNotOffered. It returns when
// the buffer is the owner's again, within some ms whatever a peer does: a read over a byte stream that is
// under way gets the rest from a copy, reads over verbs cannot be seen and are given 5 ms, one over shm
// fails. It may sleep, so it must not be called from Receive or from a Read's done; Free may.
func (b *Buffer) Withdraw() {
	b.retract()
	b.awaitReaders()

	// Reads over verbs leave no trace here; their time is all that can be known of them.
	if until := b.until.Swap(0); until != 0 {
		time.Sleep(time.Duration(until) - b.pool.now())
	}
}

// WithdrawAnswered is Withdraw for a caller who knows that whoever was told of the buffer has read
// it, by its answer. So it need not wait for reads that cannot be seen.
func (b *Buffer) WithdrawAnswered() {
	b.retract()
	b.awaitReaders()
	b.until.Store(0)
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

// FreeAnswered is Free for an owner who knows that nobody reads the buffer over verbs any more: b needs no quarantine.
func FreeAnswered(b *Buffer) {
	b.retract()
	b.until.Store(0)
	b.Free()
}

// newKey makes a key of a nonce never used before. kind is what marks it.
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
	// Who maps the segment does not find lent bytes there, so that the slot's entry is left as it is.
	if b.kind != lentKey {
		entryKey, entryLength := b.seg.entry(b.slot)
		entryLength.Store(uint64(len(b.data)))
		entryKey.Swap(key) // a full barrier: the bytes written before are seen by who sees the key
	}
	b.key.Store(key)
	b.pool.offers.Add(1)
}

// retract makes the live key, if any, invalid. Reads under way go on.
func (b *Buffer) retract() {
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

// awaitReaders returns when no read that the owner serves takes bytes from the buffer. Peers that are slow to take
// them get the rest from a copy.
func (b *Buffer) awaitReaders() {
	began := time.Duration(0)
	for i := 0; b.readers.Load()&(freeing-1) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}

		// The clock is read only by who waits long: a sound peer has its bytes by now.
		time.Sleep(20 * time.Microsecond)
		if began == 0 {
			began = b.pool.now()
		} else if b.pool.detach != nil && b.pool.now()-began > takeMax {
			b.pool.detach(b)
		}
	}
}

// reuse gives the buffer back if it is freed and no reader is left. Of the owner and the last
// reader, exactly one succeeds.
func (b *Buffer) reuse() {
	if b.readers.CompareAndSwap(freeing, 0) {
		b.pool.reclaim(b)
	}
}
