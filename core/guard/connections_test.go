package guard

import (
	"net"
	"testing"
	"time"
)

// pipeConn is a connection from an address.
type pipeConn struct {
	net.Conn
	from   string
	closed *bool
}

func (c pipeConn) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", c.from)
	return a
}

func (c pipeConn) Close() error { *c.closed = true; return nil }

func (c pipeConn) Write(b []byte) (int, error) { return len(b), nil }

func TestConnectionsGiveWay(t *testing.T) {
	table := NewConnections(Limits{All: 3, PerAddress: 2, Strangers: 4, StrangersPerAddress: 3, StrangerBytes: 1 << 20}, false)
	come := func(from string) (*Connection, *bool) {
		closed := new(bool)
		return table.admitConnection(pipeConn{from: from, closed: closed}), closed
	}
	speak := func(c *Connection) { time.Sleep(time.Millisecond); _, _ = c.Write([]byte{1}) }

	a, aClosed := come("10.0.0.1:1")
	_, bClosed := come("10.0.0.1:2")
	_, cClosed := come("10.0.0.1:3")
	speak(a)
	_, dClosed := come("10.0.0.1:4")
	if *aClosed || !*bClosed || *cClosed || *dClosed {
		t.Errorf("of one address the longest silent must give way: %v %v %v %v", *aClosed, *bClosed, *cClosed, *dClosed)
	}
	if _, closed := come("10.0.0.2:1"); *closed || *cClosed {
		t.Error("another address has a place")
	}
	if _, closed := come("10.0.0.3:1"); *closed || !*cClosed {
		t.Error("past the limit in all the longest silent must give way")
	}

	// A connection that has shown a token does not give way to strangers.
	a.Trust()
	for range 10 {
		come("10.0.0.1:5")
	}
	if *aClosed {
		t.Error("a known connection gave way to strangers")
	}
	a.Close()
	if table.addresses[a.address].known != 0 || len(table.known) != 0 {
		t.Errorf("a closed connection still counts: %+v", table.addresses[a.address])
	}
}
