package engine

import "math/bits"

// windowsMax bounds the windows of all sessions together: two bytes a place, in each partition that
// a session submits to.
const windowsMax = 1 << 28

// seats are one session's places in one partition. A request sits down where the low bits of its id
// say, with a mark made of the other bits, and stays until another sits down there, also when it is
// sent or ends: the frontend has ended the first one by then. Only an id whose mark is there can be
// queued. So for a new one no queue is searched, one that comes twice is caught, and there is no table
// of ids. A cancel searches, also for a request that was sent already.
type seats struct {
	number uint32 // the session's; 0: nobody's
	shift  uint8
	marks  []uint16
	unread unreachable
}

func newSeats(number, window uint32) seats {
	return seats{number: number, shift: uint8(bits.TrailingZeros32(window)), marks: make([]uint16, window)}
}

// seat returns a request's place, 0 when nobody sits there, and the request's mark, never 0.
func (s *seats) seat(id uint64) (place *uint16, mark uint16) {
	return &s.marks[id&uint64(len(s.marks)-1)], uint16(id>>(s.shift&63)*0x9E3779B97F4A7C15>>48) | 1
}

// seats returns those of a session, nil when it has none here: it never submitted or is gone.
func (p *partition) seats(front uint32) *seats {
	if i := front % FrontendsMax; int(i) < len(p.rows) && p.rows[i].number == front {
		return &p.rows[i]
	}
	return nil
}

// seatsFor returns a session's seats, new ones when it has none.
func (p *partition) seatsFor(f *Frontend) *seats {
	if s := p.seats(f.number); s != nil {
		return s
	}

	// The row may be a former session's: it is replaced whole.
	i := f.number % FrontendsMax
	for int(i) >= len(p.rows) {
		p.rows = append(p.rows, seats{})
	}
	p.rows[i] = newSeats(f.number, f.window)
	return &p.rows[i]
}
