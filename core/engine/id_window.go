package engine

import "math/bits"

// windowsMax bounds the sum of all sessions' windows: two bytes per entry, in each partition that a session submits
// to.
const windowsMax = 1 << 28

// idWindow remembers which request ids of one session may be queued in one partition. It is a table indexed by the low
// bits of an id that holds a 16-bit tag of the other bits. An entry stays until another id overwrites it, even after
// its request is sent or ends; by then the frontend has ended the first request. An id can be queued only if its tag
// is in the table. So a new id needs no search of a queue, a duplicate is detected, and no map of ids is needed. A
// cancel always searches, also for a request that was sent already.
type idWindow struct {
	number uint32 // the session's; 0: unused
	shift  uint8
	tags   []uint16
	unread unreachable
}

func newIDWindow(number, window uint32) idWindow {
	return idWindow{number: number, shift: uint8(bits.TrailingZeros32(window)), tags: make([]uint16, window)}
}

// findEntry returns an id's entry, 0 if it is unused, and the id's tag, never 0.
func (s *idWindow) findEntry(id uint64) (entry *uint16, tag uint16) {
	return &s.tags[id&uint64(len(s.tags)-1)], uint16(id>>(s.shift&63)*0x9E3779B97F4A7C15>>48) | 1
}

// idWindow returns a session's window; nil if it has none here, because it never submitted or is gone.
func (p *partition) idWindow(front uint32) *idWindow {
	if i := front % FrontendsMax; int(i) < len(p.windows) && p.windows[i].number == front {
		return &p.windows[i]
	}
	return nil
}

// openIDWindow returns a session's window, creating it if needed.
func (p *partition) openIDWindow(f *Frontend) *idWindow {
	if s := p.idWindow(f.number); s != nil {
		return s
	}

	// The row may hold a former session's window: replace it whole.
	i := f.number % FrontendsMax
	for int(i) >= len(p.windows) {
		p.windows = append(p.windows, idWindow{})
	}
	p.windows[i] = newIDWindow(f.number, f.window)
	return &p.windows[i]
}
