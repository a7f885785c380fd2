package control

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

// Limits on connections that have not shown the token yet.
const (
	handshakesMax  = 1024
	handshakesEach = 64                     // per address
	handshakeGrace = 200 * time.Millisecond // a new connection may displace one that is older than this
)

// handshakes holds the connections that have not shown the token yet. They are kept apart from the sessions, so that a
// stranger never takes a session's place. If too many connections wait, from one address or in total, a new one displaces
// the oldest. A connection that arrived less than handshakeGrace ago is not displaced, and the new one is closed instead:
// honest peers that all return at once would otherwise displace each other again and again. The server's lock guards the
// list.
type handshakes struct {
	max, each int
	waiting   []*session // in order of arrival
}

// arrival is the time and origin of a connection.
type arrival struct {
	at   time.Time
	from netip.Prefix
}

// beginOne adds a connection. It returns false if the connection must be closed instead.
func (h *handshakes) beginOne(c *session, now time.Time) bool {
	c.at, c.from = now, originOf(c.raw.RemoteAddr())

	var oldest *session // the one to displace, if a limit is reached
	same := 0
	for _, w := range h.waiting {
		if w.from == c.from {
			if oldest == nil {
				oldest = w
			}
			same++
		}
	}

	// A connection from the same address is displaced first: a crowded address costs other addresses nothing until all
	// places are taken.
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

// originOf returns the unit that counts as one address: an IPv4 address, or an IPv6 /64 network, since the owner of
// one address of such a network usually controls all of them.
func originOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}

	// A mapped IPv4 address and a zone are other spellings of the same origin.
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	from, _ := ip.Prefix(bits) // an invalid address has the zero prefix
	return from
}
