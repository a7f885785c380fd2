package memory

import "fmt"

// Layout describes the slots of a segment: slot i has its head at i·Stride, followed by its bytes.
type Layout struct {
	Index  int // the segment's number, from 0 to SegmentsMax-1
	Stride int // bytes from slot to slot, including heads
	Slots  int
}

// Check refuses a layout that no pool makes.
func (l Layout) Check() error {
	switch {
	case l.Index < 0 || l.Index >= SegmentsMax:
		return fmt.Errorf("%w: segment %d; allowed are 0 to %d", ErrProtocol, l.Index, SegmentsMax-1)
	case l.Slots < 1 || l.Slots > SlotsMax:
		return fmt.Errorf("%w: segment of %d slots; allowed are 1 to %d", ErrProtocol, l.Slots, SlotsMax)
	case l.Stride < HeadBytes+classMin || l.Stride > HeadBytes+BufferMax || l.Stride%8 != 0:
		return fmt.Errorf("%w: segment of slots of %d bytes; allowed are %d to %d, multiples of 8",
			ErrProtocol, l.Stride, HeadBytes+classMin, HeadBytes+BufferMax)
	}
	return nil
}

// Bytes is the size of the segment.
func (l Layout) Bytes() int { return l.Stride * l.Slots }

// Within reports whether a remote's bytes lie in one slot of the layout.
func (l Layout) Within(r Remote) bool {
	return r.Slot() < l.Slots && uint64(r.Offset)+uint64(r.Length) <= uint64(l.Stride-HeadBytes)
}

// Place returns where the bytes of a remote begin, from the segment's start.
func (l Layout) Place(r Remote) int { return r.Slot()*l.Stride + HeadBytes + int(r.Offset) }
