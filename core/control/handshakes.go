package control

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// Limits on connections that have not yet shown the token.
const (
	handshakesMax  = 1024
	handshakesEach = 64                     // of one address
	handshakeGrace = 200 * time.Millisecond // an older one gives way to a new one
)

// handshakes are the connections that have not yet shown the token, apart from the sessions: strangers
// never take a session's place. Where too many wait, of one address or in all, the oldest of them gives
// way. One that has just come keeps its place and the new one goes, so that a crowd of honest peers that
// come back at once drains instead of pushing each other out. The server's lock guards it.
type handshakes struct {
	max, each int
	waiting   []*session // in order of arrival
}

// arrival is when and from where a connection came.
type arrival struct {
	at   time.Time
	from netip.Prefix
}

// beginOne takes a connection in. It reports false when the connection must be closed instead.
func (h *handshakes) beginOne(c *session, now time.Time) bool {
	c.at, c.from = now, originOf(c.raw.RemoteAddr())

	var oldest *session // of those that c would be too many with
	same := 0
	for _, w := range h.waiting {
		if w.from == c.from {
			if oldest == nil {
				oldest = w
			}
			same++
		}
	}

	// A newcomer's own address gives way first: one crowded address costs others nothing until all places are
	// taken.
	switch {
	case same >= h.each:
	case len(h.waiting) >= h.max:
		oldest = h.waiting[0]
	default:
		oldest = nil
	}

	if oldest != nil {
		if now.Sub(oldest.at) < handshakeGrace {
			return false
		}
		h.endOne(oldest)
		oldest.raw.Close()
	}
	h.waiting = append(h.waiting, c)
	return true
}

// endOne forgets a connection, if it is there.
func (h *handshakes) endOne(c *session) {
	if i := slices.Index(h.waiting, c); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	}
}

// originOf is what counts as one address: an IPv4 address, or an IPv6 network of 64 bits, since whoever has
// one address of such a network has all.
func originOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}

	// A mapped IPv4 address and a zone are spellings of one origin.
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	from, _ := ip.Prefix(bits) // an invalid address has the zero prefix
	return from
}
