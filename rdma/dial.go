package rdma

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"downbeat.dev/rdma/stream"
)

// dialTCP connects and shakes hands with the wanted node, or with any node if it is nil. An acceptor with too many
// connections may cut one during its handshake in favour of a newer one; dialTCP then tries again, for up to Stall.
func (n *Node) dialTCP(hostport string, wanted *stream.NodeID) (net.Conn, stream.NodeID, error) {
	end := time.Now().Add(n.cfg.Stall)
	for pause := redialFirst; ; pause = min(2*pause, redialMost) {
		s, id, err := n.dialOnce(hostport, wanted)
		if err == nil || !wasCut(err) || time.Now().Add(pause).After(end) {
			return s, id, err
		}
		// The wait is random, so that peers that were cut together do not return together.
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-n.ctx.Done():
			return nil, stream.NodeID{}, ErrClosed
		}
	}
}

// wasCut reports whether the acceptor ended the connection without an answer.
func wasCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

const (
	redialFirst = 10 * time.Millisecond
	redialMost  = 200 * time.Millisecond
)

func (n *Node) dialOnce(hostport string, wanted *stream.NodeID) (net.Conn, stream.NodeID, error) {
	d := net.Dialer{Timeout: n.cfg.Stall}
	s, err := d.DialContext(n.ctx, "tcp", hostport)
	if err != nil {
		return nil, stream.NodeID{}, fmt.Errorf("%w: %w", ErrPeerLost, err)
	}

	if n.cfg.TLS != nil {
		cfg := n.cfg.TLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName, _, _ = net.SplitHostPort(hostport)
		}
		s = tls.Client(s, cfg)
	}

	id, err := n.runHandshake(s, wanted)
	return s, id, err
}

// runHandshake runs the connector's handshake within Stall and closes s if it fails. Closing the node ends it.
func (n *Node) runHandshake(s net.Conn, wanted *stream.NodeID) (stream.NodeID, error) {
	s.SetDeadline(time.Now().Add(n.cfg.Stall))
	stop := context.AfterFunc(n.ctx, func() { s.SetDeadline(time.Now()) })
	id, err := stream.Greet(s, n.id, wanted, n.cfg.Token)
	stop()
	if err != nil {
		s.Close()
		return id, err
	}
	s.SetDeadline(time.Time{})
	return id, nil
}
