package memory

import (
	"fmt"
	"slices"
	"time"
)

// Close withdraws every offer and unmaps the memory. If buffers are still held it leaves the memory mapped, as a
// slice may be in use, and returns an error.
func (p *Pool) Close(wait time.Duration) error {
	p.mu.Lock()
	p.closed = true
	segs := *p.segs.Load()
	p.mu.Unlock()

	segs = slices.DeleteFunc(slices.Clone(segs), func(s *Segment) bool { return s == nil })
	for _, s := range segs {
		for i := range s.bufs {
			s.bufs[i].withdrawKey()
		}
	}

	// Readers of withdrawn buffers get time to end, as their memory must not be unmapped under them.
	for end := time.Now().Add(wait); p.live.Load() != 0 && time.Now().Before(end) && !p.anyHeld(); {
		time.Sleep(time.Millisecond)
	}
	if n := p.live.Load(); n != 0 {
		return fmt.Errorf("close: %d buffers were not freed; their memory stays mapped", n)
	}

	p.segs.Store(&[]*Segment{})
	for _, s := range segs {
		s.unmap()
	}
	return nil
}

// anyHeld reports whether some buffer still waits for its owner's Free (and not for a reader).
func (p *Pool) anyHeld() bool {
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
