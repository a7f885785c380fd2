package rdma

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// greetings are the handshakes in progress on a node's accepting side. Anyone who reaches the port may start one, so
// they are limited, in total and per source address. At the limit an older one is closed rather than the newest: a
// peer with the token finishes within a round trip or two, and silent connections lose their places to it.
type greetings struct {
	mu  sync.Mutex
	all []*greeting // oldest first

	gaveWay, refused     int // since the last log line about it
	gaveWayTold, refTold time.Time
}

// greeting is one handshake. greetings.mu guards spoke and gone.
type greeting struct {
	conn  net.Conn
	from  netip.Addr // zero for a Unix socket
	spoke bool       // some bytes came from it
	gone  bool       // it ended, or was closed for another
}

const (
	greetingsMax  = 128                    // at a time
	greetingsEach = 32                     // of one source address
	silentMax     = 200 * time.Millisecond // from a connection to its first byte
	tellEvery     = time.Minute            // between equal log lines
)

// beginGreeting registers a handshake over s, and ends an older one if there are too many.
func (g *greetings) beginGreeting(s net.Conn, log *slog.Logger) *greeting {
	next := &greeting{conn: s, from: sourceOf(s.RemoteAddr())}
	g.mu.Lock()
	defer g.mu.Unlock()

	same := 0

	for _, other := range g.all {
		if other.from == next.from {
			same++
		}
	}

	switch {
	case same >= greetingsEach:
		g.giveWay(func(other *greeting) bool { return other.from == next.from }, log)
	case len(g.all) >= greetingsMax:
		g.giveWay(func(*greeting) bool { return true }, log)
	}
	g.all = append(g.all, next)
	return next
}

// giveWay ends the oldest of the selected handshakes that has sent nothing, or else the oldest. g.mu is held.
func (g *greetings) giveWay(selected func(*greeting) bool, log *slog.Logger) {
	// A connection that has sent something may be a peer whose second message is on its way; a silent one is most
	// likely a stranger.
	i := slices.IndexFunc(g.all, func(o *greeting) bool { return selected(o) && !o.spoke })
	if i < 0 {
		i = slices.IndexFunc(g.all, selected)
	}

	victim := g.all[i]
	victim.gone = true
	victim.conn.Close()
	g.all = slices.Delete(g.all, i, i+1)

	g.gaveWay++
	if now := time.Now(); now.Sub(g.gaveWayTold) >= tellEvery {
		log.Warn("too many connections to the data plane have not shown the secret: the oldest are closed",
			"from", victim.from.String(), "gave_way", g.gaveWay, "at_a_time", greetingsMax, "per_address", greetingsEach)
		g.gaveWay, g.gaveWayTold = 0, now
	}
}

// endGreeting removes a finished handshake, and reports whether it was closed for another.
func (g *greetings) endGreeting(over *greeting) (gaveWay bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if over.gone {
		return true
	}
	over.gone = true
	i := slices.Index(g.all, over)
	g.all = slices.Delete(g.all, i, i+1)
	return false
}

// noteBytes records that bytes came over a connection.
func (g *greetings) noteBytes(from *greeting) {
	g.mu.Lock()
	from.spoke = true
	g.mu.Unlock()
}

// logRefused logs the first refused peer, and from then on the number of them from time to time.
func (g *greetings) logRefused(log *slog.Logger, from string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused++
	if now := time.Now(); now.Sub(g.refTold) >= tellEvery {
		log.Warn("peer refused", "from", from, "err", err, "refused", g.refused)
		g.refused, g.refTold = 0, now
	}
}

// sourceOf returns the address that a connection counts under: the host's, or for IPv6 the network's, because a host
// has any number of those.
func sourceOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if network, err := ip.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return ip
}

// awaitFirstByte returns once a byte has arrived over s, without consuming it, and sets the deadline of the rest.
func (n *Node) awaitFirstByte(s net.Conn, g *greeting) error {
	raw, err := s.(syscall.Conn).SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: handshake: %w", ErrPeerLost, err)
	}
	// The byte is only peeked: TLS, or the handshake, reads it.
	began := time.Now()
	s.SetDeadline(began.Add(min(silentMax, n.cfg.Stall)))

	var first [1]byte
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err != nil {
		return fmt.Errorf("%w: silent for %v after it connected", ErrPeerLost, time.Since(began).Round(time.Millisecond))
	}
	n.greetings.noteBytes(g)
	s.SetDeadline(began.Add(n.cfg.Stall))
	return nil
}
