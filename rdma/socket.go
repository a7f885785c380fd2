package rdma

import (
	"crypto/tls"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is the socket of a conn, and its place in the loop that serves it.
type socket struct {
	fd      int      // -1 with TLS
	tls     net.Conn // nil without TLS
	overTCP bool     // also with TLS: the kernel's state can be read

	loop *loop
	slot int // in loop.conns
}

// noteCall tells the loop, if it reads the socket, that a callback is about to run.
func (s *socket) noteCall() {
	if s.tls == nil && s.loop != nil {
		s.loop.called = true
	}
}

// askKernel reads the kernel's state of the connection, by one system call that needs no privileges; nil if it has
// just ended.
func (s *socket) askKernel() (info *unix.TCPInfo) {
	// A plain socket is read many times a second, and needs no closure.
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

// shortenRetries makes the kernel retransmit and acknowledge sooner. A kernel without support keeps its defaults.
func (s *socket) shortenRetries() {
	s.onDescriptor(func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MIN_US, int(resendAfter.Microseconds()))
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DELACK_MAX_US, int(acknowledgeWithin.Microseconds()))
	})
}

// onDescriptor calls f with the connection's descriptor, or the one under TLS, unless it is closed. Only two callers
// are safe: the loop, which closes a plain socket itself, and the goroutine that sets up the connection.
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
