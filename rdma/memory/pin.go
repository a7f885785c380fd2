package memory

// Pin keeps the bytes of an offered buffer from being written or reused while they are being read. The zero Pin holds
// no buffer.
type Pin struct{ buffer *Buffer }

// Find pins the buffer of a remote. It returns false if the range is not offered under that key.
func (p *Pool) Find(r Remote) (Pin, bool) {
	segs := *p.segs.Load()
	at, slot := r.Segment(), r.Slot()
	if at >= len(segs) || segs[at] == nil || slot >= len(segs[at].bufs) || r.Key == 0 {
		return Pin{}, false
	}

	// The pin precedes the check of the key: an owner that withdraws in between sees the reader, or the reader sees
	// that the key is gone.
	pin := Pin{&segs[at].bufs[slot]}
	pin.buffer.readers.Add(1)
	if pin.buffer.key.Load() != r.Key || uint64(r.Offset)+uint64(r.Length) > uint64(len(pin.buffer.data)) {
		pin.Release()
		return Pin{}, false
	}
	return pin, true
}

// Bytes returns the bytes of r, for which Find succeeded. For lent ones use only Copy.
func (p Pin) Bytes(r Remote) []byte { return p.buffer.data[r.Offset:][:r.Length] }

// Copy copies the bytes of r. It returns false if they were lent and are no longer there.
func (p Pin) Copy(dst []byte, r Remote) bool {
	if p.buffer.kind == lentKey {
		return CopyShared(dst, p.Bytes(r))
	}
	copy(dst, p.Bytes(r))
	return true
}

// Holds reports whether the pin holds a buffer.
func (p Pin) Holds() bool { return p.buffer != nil }

// Is reports whether the pin holds b.
func (p Pin) Is(b *Buffer) bool { return p.buffer == b }

// Release ends the read. The pin's bytes must not be touched after it.
func (p Pin) Release() {
	if p.buffer.readers.Add(-1) == freeing {
		p.buffer.returnIfUnused()
	}
}
