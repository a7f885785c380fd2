package rdma

import (
	"crypto/tls"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/stream"
)

// adoptConnection makes a peer with a link from an authenticated connection. An acceptor has reserved the peer's place.
func (n *Node) adoptConnection(s net.Conn, addr string, id stream.NodeID, dialer bool) (*conn, error) {
	c, err := n.takeOver(newPeer(n, addr, id), s)
	if err != nil {
		if !dialer {
			n.releasePlace()
		}
		return nil, err
	}

	// After admitPeer, Close waits for the peer's end; after addConn, the loop may call back.
	c.dialer = dialer
	if !n.admitPeer(c.peer, !dialer) {
		c.abandon()
		return nil, fmt.Errorf("%w: %d peers, Config.PeersMax, or closing", ErrTooLarge, n.cfg.PeersMax)
	}
	if err := n.loops[int(n.next.Add(1))%len(n.loops)].addConn(c); err != nil {
		c.abandon()
		c.peer.losePeer(err)
		return nil, err
	}

	if c.socket.tls != nil {
		go c.out.frames.RunTLS()
		go c.in.readTLS()
	}
	return c, nil
}

// takeOver makes the link of a connection. With TLS it keeps Go's socket; any other socket moves to the loop's epoll.
func (n *Node) takeOver(p *Peer, s net.Conn) (*conn, error) {
	local := false
	switch s := s.(type) {
	case *tls.Conn:
		return overTCP(newConn(p, -1, false, s)), nil
	case *net.TCPConn:
		s.SetNoDelay(true)
		s.SetKeepAlive(true)
	case *net.UnixConn:
		local = true
	}

	// The loop uses its own descriptor, without Go's poller.
	fd, err := takeSocket(s)
	s.Close()
	if err != nil {
		return nil, err
	}
	if local {
		return newConn(p, fd, true, nil), nil
	}
	return overTCP(newConn(p, fd, false, nil)), nil
}

// overTCP marks a link as running over TCP, so that the kernel's state can be read.
func overTCP(c *conn) *conn {
	c.socket.overTCP = true
	c.socket.shortenRetries()
	return c
}

// takeSocket duplicates the descriptor of a Go connection, which the caller then closes.
func takeSocket(s net.Conn) (int, error) {
	raw, err := s.(interface {
		SyscallConn() (syscall.RawConn, error)
	}).SyscallConn()
	if err != nil {
		return -1, err
	}

	// The copy leaves Go's poller: only the loop's epoll may wait for the socket.
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

	// The loop must never wait for one peer's socket.
	return fd, unix.SetNonblock(fd, true)
}

// sameUser refuses a peer on this host that runs as another user, because it would see whole segments.
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
