//go:build !linux

package control

import (
	"net"
	"syscall"
)

// Where the kernel has no such limit, pings alone find a dead network.
func setUserTimeout(net.Conn) {}

func controlSocket(string, string, syscall.RawConn) error { return nil }

func readTCP(net.Conn) (tcpState, bool) { return tcpState{}, false }
