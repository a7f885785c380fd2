package rdma

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// providerOrder is the default preference, best first. Within one host a copy beats the detour over
// a network card.
var providerOrder = []string{"local", "shm", "verbs", "tcp"}

// loopsFor is the number of loops of a node: they share the host with the models that it serves. With
// verbs there is one, because it alone polls the completion queue.
func (n *Node) loopsFor() int {
	if n.verbs != nil {
		return 1
	}
	return max(1, min(4, runtime.NumCPU()/8))
}

func (n *Node) allows(provider string) bool {
	if len(n.cfg.Providers) > 0 {
		return slices.Contains(n.cfg.Providers, provider)
	}
	return provider != "verbs" || n.cfg.TLS == nil
}

// order is the providers to try, best first.
func (n *Node) order() []string {
	if len(n.cfg.Providers) > 0 {
		return n.cfg.Providers
	}
	return providerOrder
}

// socketName is the abstract Unix socket of a node: it can be reached from the same host (and
// network namespace) only, and nothing is left behind by a crash.
func socketName(id nodeID) string { return "@downbeat-rdma-" + hex.EncodeToString(id[:]) }

// splitAddr takes an address apart. The id is missing in one that a person wrote.
func splitAddr(addr string) (hostport string, id nodeID, known bool, err error) {
	hostport, text, known := strings.Cut(addr, "#")
	if known {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != idBytes {
			return "", id, false, fmt.Errorf("%w: address %q: want host:port#%d hex digits", ErrInvalid, addr, 2*idBytes)
		}
		copy(id[:], b)
	}
	if _, _, err := net.SplitHostPort(hostport); err != nil {
		return "", id, false, fmt.Errorf("%w: address %q: %w", ErrInvalid, addr, err)
	}
	return hostport, id, known, nil
}

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
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = outward()
	}
	if a := n.cfg.Advertise; a != "" {
		host = strings.Trim(a, "[]")
		if h, p, err := net.SplitHostPort(a); err == nil {
			host, port = h, p
		}
	}
	n.addr = net.JoinHostPort(host, port) + "#" + hex.EncodeToString(n.id[:])
	return nil
}

// outward is this host's first address that other hosts may reach.
func outward() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}

// reach tries the allowed providers in order. A provider that is not there is passed over; a peer
// that answers and refuses ends the search.
func (n *Node) reach(addr string) (*Peer, error) {
	hostport, id, known, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	var reasons []error
	for _, provider := range n.order() {
		if !n.allows(provider) {
			continue
		}
		var p *Peer
		switch provider {
		case "local":
			p, err = n.reachLocal(addr, id, known)
		case "shm":
			p, err = n.reachShm(addr, id, known)
		case "verbs":
			p, err = n.reachVerbs(addr, hostport)
		case "tcp":
			p, err = n.reachTCP(addr, hostport)
		}
		if err == nil {
			log := n.cfg.Logger.With("addr", addr, "provider", p.Provider())
			if len(reasons) > 0 {
				log = log.With("why_not_better", errors.Join(reasons...))
			}
			log.Info("peer connected")
			return p, nil
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", provider, err))
		if errors.Is(err, ErrAuth) || errors.Is(err, ErrVersion) || errors.Is(err, ErrClosed) || errors.Is(err, ErrTooLarge) {
			break
		}
	}
	if len(reasons) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNotSupported, errNoProvider)
	}
	return nil, errors.Join(reasons...)
}

func (n *Node) reachLocal(addr string, id nodeID, known bool) (*Peer, error) {
	nodes.Lock()
	to := nodes.byID[id]
	nodes.Unlock()
	if !known || to == nil || !to.allows("local") {
		return nil, fmt.Errorf("%w: not in this process", ErrNotSupported)
	}
	if to.cfg.Token != n.cfg.Token {
		return nil, fmt.Errorf("%w: the acceptor does not hold it", ErrAuth)
	}
	return join(n, to, addr)
}

func (n *Node) reachTCP(addr, hostport string) (*Peer, error) {
	s, id, err := n.dialTCP(hostport)
	if err != nil {
		return nil, err
	}
	return n.adopt(s, addr, id, true)
}

// dialTCP connects and shakes hands.
func (n *Node) dialTCP(hostport string) (net.Conn, nodeID, error) {
	d := net.Dialer{Timeout: n.cfg.Stall}
	s, err := d.DialContext(n.ctx, "tcp", hostport)
	if err != nil {
		return nil, nodeID{}, fmt.Errorf("%w: %w", ErrPeerLost, err)
	}
	if n.cfg.TLS != nil {
		cfg := n.cfg.TLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName, _, _ = net.SplitHostPort(hostport)
		}
		s = tls.Client(s, cfg)
	}
	id, err := n.greet(s)
	return s, id, err
}

// greet runs the connector's handshake within Stall and closes s if it fails.
func (n *Node) greet(s net.Conn) (nodeID, error) {
	s.SetDeadline(time.Now().Add(n.cfg.Stall))
	id, err := greet(s, n.id, n.cfg.Token)
	if err != nil {
		s.Close()
		return id, err
	}
	s.SetDeadline(time.Time{})
	return id, nil
}

// accept serves one listener until it is closed.
func (n *Node) accept(ln net.Listener) {
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
		if n.greeting.Add(1) > greetingMax {
			n.greeting.Add(-1)
			s.Close()
			continue
		}
		n.wait.Add(1)
		go func() {
			defer n.wait.Done()
			defer n.greeting.Add(-1)
			if err := n.welcome(s); err != nil {
				n.cfg.Logger.Info("peer refused", "from", s.RemoteAddr().String(), "err", err)
			}
		}()
	}
}

// welcome runs the acceptor's handshake within Stall.
func (n *Node) welcome(s net.Conn) error {
	local := s.LocalAddr().Network() == "unix"
	if local {
		if err := sameUser(s); err != nil {
			s.Close()
			return err
		}
	}
	if n.cfg.TLS != nil && !local {
		s = tls.Server(s, n.cfg.TLS)
	}
	stop := context.AfterFunc(n.ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	s.SetDeadline(time.Now().Add(n.cfg.Stall))
	took := false
	id, err := welcome(s, n.id, n.cfg.Token, func() bool { took = n.reserve(); return took })
	stop()
	if err != nil {
		if took {
			n.release()
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

// release gives a reserved place back.
func (n *Node) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reserved--
}

// adopt turns a connection whose ends have proved themselves into a peer. An acceptor has reserved its place.
func (n *Node) adopt(s net.Conn, addr string, id nodeID, dialer bool) (*Peer, error) {
	p := newPeer(n, addr, id)
	c := newConn(p)
	p.conn, c.dialer = c, dialer
	c.heard.Store(int64(n.now()))
	switch s := s.(type) {
	case *net.TCPConn:
		s.SetNoDelay(true)
		s.SetKeepAlive(true)
	case *net.UnixConn:
		c.unix = true
	case *tls.Conn:
		c.tls, c.kick = s, make(chan struct{}, 1)
	}
	if c.tls == nil {
		fd, err := takeSocket(s)
		s.Close()
		if err != nil {
			if !dialer {
				n.release()
			}
			return nil, err
		}
		c.fd = fd
	}
	if c.unix {
		newShmReader(c)
	}
	if !n.admit(p, !dialer) {
		c.abandon()
		return nil, fmt.Errorf("%w: %d peers, Config.PeersMax, or closing", ErrTooLarge, n.cfg.PeersMax)
	}
	if err := n.loops[int(n.next.Add(1))%len(n.loops)].add(c); err != nil {
		c.abandon()
		p.lose(err)
		return nil, err
	}
	if c.tls != nil {
		go c.writeTLS()
		go c.readTLS()
	}
	return p, nil
}

// abandon closes a conn that no loop serves yet.
func (c *conn) abandon() {
	c.mu.Lock()
	c.dropped = true
	if c.tls != nil {
		c.tls.Close()
	}
	c.release()
	c.mu.Unlock()
}

// takeSocket duplicates the descriptor of a Go connection, which the caller then closes.
func takeSocket(s net.Conn) (int, error) {
	raw, err := s.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := raw.Control(func(old uintptr) {
		fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, fmt.Errorf("%w: %w", ErrNoMemory, dupErr)
	}
	return fd, unix.SetNonblock(fd, true)
}

// sameUser refuses a peer on this host that is another user: it would see whole segments.
func sameUser(s net.Conn) error {
	raw, err := s.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if uid := unix.Geteuid(); int(cred.Uid) != uid {
		return fmt.Errorf("%w: peer is user %d, this process is user %d", ErrAuth, cred.Uid, uid)
	}
	return nil
}
