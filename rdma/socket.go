package rdma

import (
	"crypto/tls"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is what a conn's bytes travel over, and its place in the loop that serves it.
type socket struct {
	fd      int      // -1 with TLS
	tls     net.Conn // nil without TLS
	overTCP bool     // TLS, too: there is a kernel to ask

	loop *loop
	slot int // in loop.conns
}

// noteCall notes in the loop, where that reads the socket, that somebody is about to be called back.
func (s *socket) noteCall() {
	if s.tls == nil && s.loop != nil {
		s.loop.called = true
	}
}

// askKernel asks the kernel about the connection, by one system call that needs no privileges; nil of one that has just ended.
func (s *socket) askKernel() (info *unix.TCPInfo) {
	// A plain socket is asked many times a second, and needs no closure for it.
	if s.tls == nil {
		return tcpInfo(s.fd)
	}
	s.onDescriptor(func(fd int) { info = tcpInfo(fd) })
	return info
}

func tcpInfo(fd int) *unix.TCPInfo {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return nil
	}
	return info
}

// hasten has the kernel send again sooner what was lost, and acknowledge sooner. A kernel that refuses does both as it always did.
func (s *socket) hasten() {
	s.onDescriptor(func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MIN_US, int(resendAfter.Microseconds()))
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DELACK_MAX_US, int(acknowledgeWithin.Microseconds()))
	})
}

// onDescriptor calls f with the connection's descriptor, or that under TLS, unless it is closed. Only the loop calls it, which closes
// a plain socket itself, or whoever makes the connection.
func (s *socket) onDescriptor(f func(fd int)) {
	if s.tls == nil {
		f(s.fd)
		return
	}

	secured, isTLS := s.tls.(*tls.Conn)
	if !isTLS {
		return
	}
	if under, ok := secured.NetConn().(syscall.Conn); ok {
		if raw, err := under.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { f(int(fd)) })
		}
	}
}
