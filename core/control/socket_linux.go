package control

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What a kernel is asked to do where it can (Linux 6.15 and later; decision 0195), as on the data plane. Linux sends again after 200 ms,
// longer than most deadlines; sooner than the 40 ms for which another host may hold an acknowledgement back it would send twice.
const (
	resendAfter       = 50 * time.Millisecond
	acknowledgeWithin = 5 * time.Millisecond
)

// setUserTimeout has the kernel give conn up when what was sent is not acknowledged for QuietMax, so
// that a network that fails is noticed where nobody reads, and a link is not kept waiting by backed-off
// retransmissions after the network has healed; and send again sooner what was lost.
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

		// In microseconds.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MIN_US, int(resendAfter.Microseconds()))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DELACK_MAX_US, int(acknowledgeWithin.Microseconds()))
	})
}

// readTCP asks the kernel what it knows of a connection, by one system call that needs no privileges.
func readTCP(conn net.Conn) (state tcpState, ok bool) {
	c, isSocket := conn.(syscall.Conn)
	if !isSocket {
		return tcpState{}, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return tcpState{}, false
	}

	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return // a connection that has just ended
		}

		// Retransmits counts timeouts in a row; one acknowledgement sets it back. The timeout has doubled with each.
		passed := time.Duration(info.Rto-info.Rto>>min(info.Backoff, 31)) * time.Microsecond
		state, ok = tcpState{roundTrip: time.Duration(info.Rtt) * time.Microsecond, variance: time.Duration(info.Rttvar) * time.Microsecond,
			retransmitted: info.Total_retrans, stalled: info.Retransmits > 0 && info.Unacked > 0 && passed >= stallLeast}, true
	})
	return state, ok && err == nil
}
