package control

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket options that the kernel supports since Linux 6.15 (decision 0195), as on the data plane. Linux retransmits
// after 200 ms, longer than most deadlines. Below the 40 ms for which another host may delay an acknowledgement, it
// would send twice.
const (
	resendAfter       = 50 * time.Millisecond
	acknowledgeWithin = 5 * time.Millisecond
)

// setUserTimeout makes the kernel close conn when sent data is not acknowledged for QuietMax. So a failed network is
// noticed even without a reader, and a link does not wait for backed-off retransmissions after the network has
// recovered. It also shortens the time to the first retransmission.
func setUserTimeout(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = controlSocket("", "", raw)
	}
}

// controlSocket does the same for a socket that is about to connect. If the kernel refuses, the pings remain.
func controlSocket(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// In milliseconds, as tcp(7) has it.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(QuietMax.Milliseconds()))

		// In microseconds.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MIN_US, int(resendAfter.Microseconds()))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DELACK_MAX_US, int(acknowledgeWithin.Microseconds()))
	})
}

// readTCP reads the kernel's state of a connection, by one system call that needs no privileges.
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

		// Retransmits counts consecutive timeouts; an acknowledgement resets it. The timeout has doubled with each.
		passed := time.Duration(info.Rto-info.Rto>>min(info.Backoff, 31)) * time.Microsecond
		state, ok = tcpState{roundTrip: time.Duration(info.Rtt) * time.Microsecond, variance: time.Duration(info.Rttvar) * time.Microsecond,
			retransmitted: info.Total_retrans, stalled: info.Retransmits > 0 && info.Unacked > 0 && passed >= stallLeast}, true
	})
	return state, ok && err == nil
}
