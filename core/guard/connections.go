package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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

// Connection is one accepted connection. The methods of a nil Connection do nothing.
type Connection struct {
	net.Conn
	of      *Connections
	address netip.Addr
	known   atomic.Bool  // has presented a token, or needs none
	heard   atomic.Int64 // time of the latest byte in either direction, in ns since the epoch
	first   atomic.Int64 // time of the first byte of the present REST call, in ns since the epoch; 0: none yet
	closed  bool         // guarded by of.mu
	remote  net.Addr     // remoteAddress that leads back to c; made once, since every call asks for it

	reads, writes deadline

	sent   int64 // bytes that a stranger sent beyond its allowance; used only by the reader
	atLast int64 // when sent was updated, in ns since the epoch
}

// remoteAddress is a peer's address that leads to its Connection, through TLS and gRPC.
type remoteAddress struct {
	net.Addr
	connection *Connection
}

// ConnectionOf returns the Connection behind an address; nil if the address belongs to none.
func ConnectionOf(a net.Addr) *Connection {
	if r, ok := a.(remoteAddress); ok {
		return r.connection
	}
	return nil
}

type connectionKey struct{}

// WithConnection is an HTTP server's ConnContext. It makes the connection available to calls.
func WithConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, ConnectionOf(c.RemoteAddr()))
}

// CallersConnection returns the connection of an HTTP call from its context; nil if the server does not use
// WithConnection.
func CallersConnection(ctx context.Context) *Connection {
	c, _ := ctx.Value(connectionKey{}).(*Connection)
	return c
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

// Trust marks a stranger as known, after it has presented a token.
func (c *Connection) Trust() {
	if c == nil || c.known.Load() {
		return
	}

	t := c.of
	var victim *Connection
	t.mu.Lock()

	// Another call may have trusted or closed the connection since the check without the lock.
	if !c.closed && !c.known.Load() {
		t.unlistConnection(c)
		c.known.Store(true)
		victim = t.listConnection(c)
	}
	t.mu.Unlock()

	if victim != nil {
		victim.Close()
	}
}

var errStranger = errors.New("a connection without a token has sent more than one may")

// Began returns when the first byte of the present HTTP call was read; zero: none yet.
func (c *Connection) Began() time.Time {
	if c == nil {
		return time.Time{}
	}

	// The time is kept as ns since the epoch, so that readers need no lock.
	first := c.first.Load()
	if first == 0 {
		return time.Time{}
	}
	return c.of.epoch.Add(time.Duration(first))
}

// AwaitCall marks the present call as answered: the next byte begins another call.
func (c *Connection) AwaitCall() {
	if c != nil {
		c.first.Store(0)
	}
}

// Read implements net.Conn. It limits all bytes of a stranger, since the server holds unfinished calls in memory.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for err != nil && n == 0 && c.reads.isLater(err, c.of.epoch) {
		n, err = c.Conn.Read(b)
	}

	now := c.of.now()
	c.heard.Store(now)

	// Only the first byte of a call sets its time; AwaitCall clears it for the next call.
	if n > 0 {
		c.first.CompareAndSwap(0, now)
	}
	if c.known.Load() {
		return n, err
	}

	// The allowance refills over time, as in a leaky bucket.
	l := c.of.limits
	c.sent = max(0, c.sent-(now-c.atLast)/int64(time.Millisecond)*int64(l.StrangerBytesPerMS)) + int64(n)
	c.atLast = now
	if c.sent > int64(l.StrangerBytes) {
		return 0, errStranger // the server ends the connection on the error
	}
	return n, err
}

// Write implements net.Conn.
func (c *Connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	for err != nil && c.writes.isLater(err, c.of.epoch) {
		var more int
		more, err = c.Conn.Write(b[n:])
		n += more
	}
	c.heard.Store(c.of.now())
	return n, err
}

// RemoteAddr implements net.Conn.
func (c *Connection) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Connection) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Connection) SetReadDeadline(t time.Time) error { return c.reads.move(t, c.of.epoch) }

// SetWriteDeadline implements net.Conn.
func (c *Connection) SetWriteDeadline(t time.Time) error { return c.writes.move(t, c.of.epoch) }

// Close implements net.Conn.
func (c *Connection) Close() error {
	c.of.mu.Lock()

	// A connection may be closed more than once but is removed once.
	if !c.closed {
		c.closed = true
		c.of.unlistConnection(c)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
