package rdma

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"downbeat.dev/rdma/stream"
)

// listen opens the node's sockets and sets its address.
func (n *Node) listen() error {
	ln, err := net.Listen("tcp", n.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	n.tcp = ln

	if n.allowsProvider("shm") {
		if n.unix, err = net.Listen("unix", socketName(n.id)); err != nil {
			n.cfg.Logger.Warn("no shared memory: peers on this host use another provider", "err", err)
			n.unix = nil
		}
	}

	n.addr = n.advertised()
	return nil
}

// acceptPeers serves one listener until it is closed.
func (n *Node) acceptPeers(ln net.Listener) {
	defer n.wait.Done()
	for {
		s, err := ln.Accept()
		if n.ctx.Err() != nil {
			if err == nil {
				s.Close()
			}
			return
		}

		if err != nil {
			n.cfg.Logger.Warn("accept", "err", err)
			select { // most likely out of descriptors
			case <-time.After(50 * time.Millisecond):
			case <-n.ctx.Done():
			}
			continue
		}

		// Handshakes run side by side: one that is silent delays no other.
		g := n.greetings.beginGreeting(s, n.cfg.Logger)
		n.wait.Add(1)
		go func() {
			defer n.wait.Done()
			err := n.acceptHandshake(s, g)
			if gaveWay := n.greetings.endGreeting(g); err != nil && !gaveWay && n.ctx.Err() == nil { // a closing node ends them all
				n.greetings.logRefused(n.cfg.Logger, s.RemoteAddr().String(), err)
			}
		}()
	}
}

// acceptHandshake runs the acceptor's handshake: a connection must send something within silentMax, and finish within
// Stall.
func (n *Node) acceptHandshake(s net.Conn, g *greeting) error {
	// Any local user can connect to a Unix socket, but whole segments are only for this process's user.
	local := s.LocalAddr().Network() == "unix"
	if local {
		if err := sameUser(s); err != nil {
			s.Close()
			return err
		}
	}

	// Until it has sent something like a peer, closing the node closes the connection.
	plain := s
	stop := context.AfterFunc(n.ctx, func() { plain.Close() })
	if err := n.awaitFirstByte(s, g); err != nil {
		stop()
		s.Close()
		return err
	}

	if n.cfg.TLS != nil && !local {
		s = tls.Server(s, n.cfg.TLS)
	}

	// The place is reserved before the peer is accepted, and released if the handshake still fails.
	took := false
	id, err := stream.Welcome(s, n.id, n.cfg.Token, func() bool { took = n.reservePlace(); return took })
	stop()
	if err != nil {
		if took {
			n.releasePlace()
		}
		s.Close()
		return err
	}

	s.SetDeadline(time.Time{})
	from := s.RemoteAddr().String()
	if local {
		from = "unix#" + hex.EncodeToString(id[:])
	}
	_, err = n.adoptConnection(s, from, id, false)
	return err
}

// reservePlace keeps a place for a peer that is accepted before it is admitted: an accepted peer must not lose its place
// to a later one.
func (n *Node) reservePlace() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || len(n.peers)+n.reserved >= n.cfg.PeersMax {
		return false
	}
	n.reserved++
	return true
}

// releasePlace gives a reserved place back.
func (n *Node) releasePlace() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reserved--
}
