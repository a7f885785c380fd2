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

// listen opens the node's sockets and makes its address.
func (n *Node) listen() error {
	ln, err := net.Listen("tcp", n.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	n.tcp = ln

	if n.allows("shm") {
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
			select { // out of descriptors, most likely
			case <-time.After(50 * time.Millisecond):
			case <-n.ctx.Done():
			}
			continue
		}

		g := n.greetings.beginGreeting(s, n.cfg.Logger)
		n.wait.Add(1)
		go func() {
			defer n.wait.Done()
			err := n.welcome(s, g)
			if gaveWay := n.greetings.endGreeting(g); err != nil && !gaveWay {
				n.greetings.logRefused(n.cfg.Logger, s.RemoteAddr().String(), err)
			}
		}()
	}
}

// welcome runs the acceptor's handshake: a connection must say something within silentMax, and be through within
// Stall.
func (n *Node) welcome(s net.Conn, g *greeting) error {
	// A Unix socket is any local user's to connect to; whole segments are for this process's user alone.
	local := s.LocalAddr().Network() == "unix"
	if local {
		if err := sameUser(s); err != nil {
			s.Close()
			return err
		}
	}

	// Until somebody has spoken who sounds like a peer, the end of the node ends the connection.
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

	// A place is taken before the peer is told yes, and given back if the handshake fails after all.
	took := false
	id, err := stream.Welcome(s, n.id, n.cfg.Token, func() bool { took = n.reserve(); return took })
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
	_, err = n.adopt(s, from, id, false)
	return err
}

// reserve keeps a place for a peer that is told so before it is admitted: who is told yes is not refused
// for the sake of one who came later.
func (n *Node) reserve() bool {
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
