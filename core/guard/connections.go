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

// Limits bound the connections of one Connections. A stranger is a connection that has not shown a token yet, where one
// is demanded.
type Limits struct {
	All, PerAddress                   int
	Strangers, StrangersPerAddress    int
	StrangerBytes, StrangerBytesPerMS int // what a stranger may send at once, and for each millisecond that passes
}

// Connections are those that a process has open on one listener or several. At a limit the one that has been silent
// longest gives way to the one that comes. Its methods may be called from any goroutine.
type Connections struct {
	limits  Limits
	trusted bool // no token is demanded: nobody is a stranger
	epoch   time.Time

	mu        sync.Mutex // guards what follows
	known     map[*Connection]struct{}
	strangers map[*Connection]struct{}
	addresses map[netip.Addr]*addressCount
}

// addressCount counts the connections of one address.
type addressCount struct{ known, strangers int }

// NewConnections returns a table without connections. trusted says that no token is demanded, so that nobody is a stranger.
func NewConnections(l Limits, trusted bool) *Connections {
	return &Connections{limits: l, trusted: trusted, epoch: time.Now(), known: map[*Connection]struct{}{},
		strangers: map[*Connection]struct{}{}, addresses: map[netip.Addr]*addressCount{}}
}

// Connection is one of them. A nil one is nobody's.
type Connection struct {
	net.Conn
	of      *Connections
	address netip.Addr
	known   atomic.Bool  // has shown a token, or need not
	heard   atomic.Int64 // when bytes went either way last, in ns since the epoch
	first   atomic.Int64 // when the first byte of the REST call under way came, in ns since the epoch; 0: none has
	closed  bool         // guarded by of.mu
	remote  net.Addr     // leads back here; made once, for each call of a connection asks for it

	reads, writes deadline

	sent   int64 // what a stranger has sent beyond its allowance; its one reader's
	atLast int64 // when sent was brought up to date, in ns since the epoch
}

// remoteAddress is a peer's address that leads to its connection, through TLS and gRPC.
type remoteAddress struct {
	net.Addr
	connection *Connection
}

// ConnectionOf finds the connection behind an address; nil if it is not one of ours.
func ConnectionOf(a net.Addr) *Connection {
	if r, ok := a.(remoteAddress); ok {
		return r.connection
	}
	return nil
}

type connectionKey struct{}

// WithConnection is an HTTP server's ConnContext: calls then know their connection.
func WithConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, ConnectionOf(c.RemoteAddr()))
}

// CallersConnection is the connection of an HTTP call by its context; nil: its server has no WithConnection.
func CallersConnection(ctx context.Context) *Connection {
	c, _ := ctx.Value(connectionKey{}).(*Connection)
	return c
}

// Bound bounds the connections that a listener accepts.
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

// admitConnection takes a connection in; the one that has been silent longest is closed for it if it must be.
func (t *Connections) admitConnection(s net.Conn) *Connection {
	c := &Connection{Conn: s, of: t}
	c.remote = remoteAddress{s.RemoteAddr(), c}
	c.reads.beginUnset(s.SetReadDeadline)
	c.writes.beginUnset(s.SetWriteDeadline)

	// A socket for both families writes an IPv4 address in two ways: Unmap makes them one.
	if a, err := netip.ParseAddrPort(s.RemoteAddr().String()); err == nil {
		c.address = a.Addr().Unmap()
	}
	c.known.Store(t.trusted)
	c.heard.Store(t.now())

	t.mu.Lock()
	victim := t.listConnection(c)
	t.mu.Unlock()

	// The victim is closed without the lock, which Close takes.
	if victim != nil {
		victim.Close()
	}
	return c
}

// now is the time since the epoch, in ns.
func (t *Connections) now() int64 { return int64(time.Since(t.epoch)) }

// listConnection counts a connection among its kind and returns the one that must give way, or nil. The lock is held.
func (t *Connections) listConnection(c *Connection) (victim *Connection) {
	count := t.addresses[c.address]
	if count == nil {
		count = new(addressCount)
		t.addresses[c.address] = count
	}

	// Strangers and callers who have shown a token have bounds of their own, so that the first never displace the
	// others.
	kind, ofAddress, all, perAddress := t.strangers, &count.strangers, t.limits.Strangers, t.limits.StrangersPerAddress
	if c.known.Load() {
		kind, ofAddress, all, perAddress = t.known, &count.known, t.limits.All, t.limits.PerAddress
	}

	// The victim leaves its table only when it is closed: a table may be one over its bound until then.
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

// longestSilent is the connection that no byte went over for the longest time.
func longestSilent(among map[*Connection]struct{}, counts func(*Connection) bool) (oldest *Connection) {
	// A search over all is fine: it happens at a bound only.
	for c := range among {
		if counts(c) && (oldest == nil || c.heard.Load() < oldest.heard.Load()) {
			oldest = c
		}
	}
	return oldest
}

// unlistConnection counts a connection no more. The lock is held.
func (t *Connections) unlistConnection(c *Connection) {
	count := t.addresses[c.address]
	if c.known.Load() {
		delete(t.known, c)
		count.known--
	} else {
		delete(t.strangers, c)
		count.strangers--
	}

	// There may be any number of addresses over time: one without connections is forgotten.
	if *count == (addressCount{}) {
		delete(t.addresses, c.address)
	}
}

// Trust makes a stranger known: it has shown a token.
func (c *Connection) Trust() {
	if c == nil || c.known.Load() {
		return
	}

	t := c.of
	var victim *Connection
	t.mu.Lock()

	// Another call may have trusted or closed it since it was looked at without the lock.
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

// Began is when the first byte of the HTTP call under way was read; zero: none has come.
func (c *Connection) Began() time.Time {
	if c == nil {
		return time.Time{}
	}

	// The moment is kept as nanoseconds since an epoch, so that readers need no lock.
	first := c.first.Load()
	if first == 0 {
		return time.Time{}
	}
	return c.of.epoch.Add(time.Duration(first))
}

// AwaitCall says that the call under way has been answered: the next byte begins another.
func (c *Connection) AwaitCall() {
	if c != nil {
		c.first.Store(0)
	}
}

// Read implements net.Conn. A stranger's bytes are bounded, whatever they are: what it begins and does not
// end is held in memory.
func (c *Connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for err != nil && n == 0 && c.reads.isLater(err, c.of.epoch) {
		n, err = c.Conn.Read(b)
	}

	now := c.of.now()
	c.heard.Store(now)

	// Only the first byte of a call sets its clock; AwaitCall clears it for the next.
	if n > 0 {
		c.first.CompareAndSwap(0, now)
	}
	if c.known.Load() {
		return n, err
	}

	// The allowance comes back as time passes, as in a leaky bucket.
	l := c.of.limits
	c.sent = max(0, c.sent-(now-c.atLast)/int64(time.Millisecond)*int64(l.StrangerBytesPerMS)) + int64(n)
	c.atLast = now
	if c.sent > int64(l.StrangerBytes) {
		return 0, errStranger // the server that reads ends the connection
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

	// A connection may be closed more than once and is counted once.
	if !c.closed {
		c.closed = true
		c.of.unlistConnection(c)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
