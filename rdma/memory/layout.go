package memory

import "fmt"

// Layout says where the slots of a segment lie: slot i has its head at i·Stride, and its bytes behind that.
type Layout struct {
	Index  int // the segment's number, from 0 to SegmentsMax-1
	Stride int // bytes from slot to slot, heads included
	Slots  int
}

// Check refuses what no pool lays out.
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

// Within tells whether a remote names bytes of one slot, as far as the layout says.
func (l Layout) Within(r Remote) bool {
	return r.Slot() < l.Slots && uint64(r.Offset)+uint64(r.Length) <= uint64(l.Stride-HeadBytes)
}

// Place is where the bytes of a remote begin, counted from the segment's start.
func (l Layout) Place(r Remote) int { return r.Slot()*l.Stride + HeadBytes + int(r.Offset) }
