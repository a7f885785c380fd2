package sicklink

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// DropArrivals has the kernel drop whatever comes for a socket, as if its host had gone, or ends that. Nothing is acknowledged meanwhile.
func DropArrivals(conn net.Conn, drop bool) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}

	// A filter that passes nothing; it needs no privileges.
	const nothing = unix.BPF_RET | unix.BPF_K
	program := unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: nothing}}
	if rerr := raw.Control(func(fd uintptr) {
		if drop {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	}); rerr != nil {
		return rerr
	}
	return err
}

// DropArrivals does so to both ends of the path, for the connections that there are.
func (l *Link) DropArrivals(drop bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		if err := DropArrivals(c, drop); err != nil {
			return err
		}
	}
	return nil
}
