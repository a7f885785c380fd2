package guard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

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
