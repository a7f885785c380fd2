package control

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestStrangersTakeNoSession shows that silent connections, more than there are sessions, keep no peer out.
func TestStrangersTakeNoSession(t *testing.T) {
	h := open(t, ServerOptions{Token: "secret", SessionsMax: 2})
	for range 300 {
		conn, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}

	link, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr, Token: "secret"}, wire.FrontendHello{}, newCaller())
	if err != nil {
		t.Fatalf("with 300 silent strangers: %v", err)
	}
	defer link.Close()

	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if n := len(h.s.handshakes.waiting); n > handshakesEach {
		t.Errorf("%d handshakes wait, want at most %d of one address", n, handshakesEach)
	}
	if n := len(h.s.sessions); n != 1 {
		t.Errorf("%d sessions, want the frontend's", n)
	}
}

// fakeConn is a connection from an address that records its end.
type fakeConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1))
}
func (c *fakeConn) Close() error { c.closed = true; return nil }

func TestHandshakesShareByAddress(t *testing.T) {
	h := handshakes{max: 4, each: 2}
	start := time.Now()
	var conns []*fakeConn
	begin := func(from string, after time.Duration) bool {
		c := &fakeConn{from: from}
		conns = append(conns, c)
		return h.beginOne(&session{raw: c}, start.Add(after))
	}
	closed := func() (all []int) {
		for i, c := range conns {
			if c.closed {
				all = append(all, i)
			}
		}
		return all
	}

	begin("192.0.2.1", 0)
	begin("::ffff:192.0.2.1", 10*time.Millisecond)
	if begin("192.0.2.1", 20*time.Millisecond) {
		t.Error("a third of one address pushed out one that had just come")
	}
	if !begin("192.0.2.1", time.Second) || fmt.Sprint(closed()) != "[0]" {
		t.Errorf("a third of one address a second later: closed %v, want the oldest", closed())
	}

	begin("2001:db8::1", time.Second)
	begin("2001:db8::2", time.Second) // the same /64 network
	if begin("2001:db8::3", time.Second) {
		t.Error("a third of one IPv6 network was taken")
	}
	if !begin("192.0.2.9", 2*time.Second) || fmt.Sprint(closed()) != "[0 1]" {
		t.Errorf("a fifth in all: closed %v, want the oldest of all, too", closed())
	}
	if len(h.waiting) != 4 {
		t.Errorf("%d wait, want 4", len(h.waiting))
	}
}
