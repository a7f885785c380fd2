package gateway

import (
	"net"
	"sync"
	"time"
)

// handshakeEnd is the time that a closing gateway leaves to the handshakes under way.
const handshakeEnd = 100 * time.Millisecond

// handshakes is gRPC's listener with its connections whose handshake is under way. gRPC waits for these handshakes
// before it ends: a caller that connects and says nothing would use up the time that the process has to end its calls
// and batches.
type handshakes struct {
	net.Listener

	mu     sync.Mutex // no other lock of the gateway is taken under it
	open   map[*handshake]struct{}
	ending bool
}

// handshake is one connection of handshakes.
type handshake struct {
	net.Conn
	of *handshakes
}

func newHandshakes(l net.Listener) *handshakes {
	return &handshakes{Listener: l, open: map[*handshake]struct{}{}}
}

// Accept implements net.Listener.
func (h *handshakes) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &handshake{c, h}, nil
}

// SetDeadline implements net.Conn. gRPC sets a deadline for the handshake, and none after it.
func (c *handshake) SetDeadline(t time.Time) error {
	h := c.of
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.IsZero() {
		delete(h.open, c)
	} else {
		h.open[c] = struct{}{}
		if h.ending {
			t = time.Now().Add(handshakeEnd)
		}
	}

	// Under the lock, so that a deadline of endSoon never follows the end of the handshake.
	return c.Conn.SetDeadline(t)
}

// endSoon leaves all handshakes, also those that begin later, handshakeEnd.
func (h *handshakes) endSoon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ending = true
	for c := range h.open {
		_ = c.Conn.SetDeadline(time.Now().Add(handshakeEnd)) // it fails only if the connection is closed
	}
}
