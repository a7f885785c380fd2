package rdma

// Reserve names the offer that Publish will make: the Remote can be told to peers while the buffer
// is still being filled. A read before Publish fails with ErrNotOffered. It ends the offer before.
func (b *Buffer) Reserve() Remote {
	b.retract()
	key := b.pool.nonce() | uint64(b.seg.index)<<slotBits | uint64(b.slot)
	for key>>(slotBits+segmentBits) == 0 { // a nonce of 0 would let key 0 be valid
		key = b.pool.nonce() | uint64(b.seg.index)<<slotBits | uint64(b.slot)
	}
	return Remote{Key: key, Length: uint32(b.size)}
}

// Publish makes the buffer readable under what Reserve returned, until Withdraw or Free. The owner
// must not write the buffer from then on.
func (b *Buffer) Publish(r Remote) {
	b.retract()
	k, length := b.seg.entry(b.slot)
	length.Store(uint64(b.size))
	k.Swap(r.Key) // a full barrier: the bytes written before are seen by who sees the key
	b.key.Store(r.Key)
	b.pool.offers.Add(1)
}
