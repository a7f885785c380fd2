package guard

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits are the limits of a Connections. If a token is required, a connection is a stranger until it has presented
// one.
type Limits struct {
	All, PerAddress                   int
	Strangers, StrangersPerAddress    int
	StrangerBytes, StrangerBytesPerMS int // bytes that a stranger may send at once, and per millisecond
}

// Connections is the set of a process's open connections, on one or several listeners. At a limit, a new connection
// displaces the one that has been silent longest. Its methods may be called concurrently.
type Connections struct {
	limits  Limits
	trusted bool // no token is required: there are no strangers
	epoch   time.Time

	mu        sync.Mutex // guards the fields below
	known     map[*Connection]struct{}
	strangers map[*Connection]struct{}
	addresses map[netip.Addr]*addressCount
}

// addressCount counts the connections of one address.
type addressCount struct{ known, strangers int }

// NewConnections returns an empty set. trusted means that no token is required, so that there are no strangers.
func NewConnections(l Limits, trusted bool) *Connections {
	return &Connections{limits: l, trusted: trusted, epoch: time.Now(), known: map[*Connection]struct{}{},
		strangers: map[*Connection]struct{}{}, addresses: map[netip.Addr]*addressCount{}}
}

// Bound wraps a listener so that its connections are limited.
func (t *Connections) Bound(l net.Listener) net.Listener { return boundedListener{l, t} }

type boundedListener struct {
	net.Listener
	connections *Connections
}

// Accept implements net.Listener.
func (l boundedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.connections.admitConnection(c), nil
}

// admitConnection adds a connection. At a limit it closes the one that has been silent longest.
func (t *Connections) admitConnection(s net.Conn) *Connection {
	c := &Connection{Conn: s, of: t}
	c.remote = remoteAddress{s.RemoteAddr(), c}
	c.reads.beginUnset(s.SetReadDeadline)
	c.writes.beginUnset(s.SetWriteDeadline)

	// A dual-stack socket writes IPv4 addresses in two forms; Unmap unifies them.
	if a, err := netip.ParseAddrPort(s.RemoteAddr().String()); err == nil {
		c.address = a.Addr().Unmap()
	}
	c.known.Store(t.trusted)
	c.heard.Store(t.now())

	t.mu.Lock()
	victim := t.listConnection(c)
	t.mu.Unlock()

	// Close the victim without the lock, since Close takes it.
	if victim != nil {
		victim.Close()
	}
	return c
}

// now returns the time since the epoch, in ns.
func (t *Connections) now() int64 { return int64(time.Since(t.epoch)) }

// listConnection adds a connection to its table and returns the one that must give way, or nil. The caller holds the
// lock.
func (t *Connections) listConnection(c *Connection) (victim *Connection) {
	count := t.addresses[c.address]
	if count == nil {
		count = new(addressCount)
		t.addresses[c.address] = count
	}

	// Strangers and known callers have separate limits, so that strangers never displace known callers.
	kind, ofAddress, all, perAddress := t.strangers, &count.strangers, t.limits.Strangers, t.limits.StrangersPerAddress
	if c.known.Load() {
		kind, ofAddress, all, perAddress = t.known, &count.known, t.limits.All, t.limits.PerAddress
	}

	// The victim leaves its table only when it is closed; until then a table may exceed its limit by one.
	switch {
	case *ofAddress >= perAddress:
		victim = longestSilent(kind, func(o *Connection) bool { return o.address == c.address })
	case len(kind) >= all:
		victim = longestSilent(kind, func(*Connection) bool { return true })
	}

	kind[c] = struct{}{}
	*ofAddress++
	return victim
}

// longestSilent returns the connection that has been silent longest among those that count.
func longestSilent(among map[*Connection]struct{}, counts func(*Connection) bool) (oldest *Connection) {
	// A linear search is enough: it runs only at a limit.
	for c := range among {
		if counts(c) && (oldest == nil || c.heard.Load() < oldest.heard.Load()) {
			oldest = c
		}
	}
	return oldest
}

// unlistConnection removes a connection from its table. The caller holds the lock.
func (t *Connections) unlistConnection(c *Connection) {
	count := t.addresses[c.address]
	if c.known.Load() {
		delete(t.known, c)
		count.known--
	} else {
		delete(t.strangers, c)
		count.strangers--
	}

	// Forget addresses without connections: their number is unbounded over time.
	if *count == (addressCount{}) {
		delete(t.addresses, c.address)
	}
}
