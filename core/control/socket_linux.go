package control

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout has the kernel give conn up when what was sent is not acknowledged for QuietMax, so
// that a network that fails is noticed where nobody reads, and a link is not kept waiting by backed-off
// retransmissions after the network has healed.
func setUserTimeout(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = controlSocket("", "", raw)
	}
}

// controlSocket does the same for a socket that is about to connect. A kernel that refuses leaves the
// link to the pings.
func controlSocket(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// In milliseconds, as tcp(7) has it.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(QuietMax.Milliseconds()))
	})
}
