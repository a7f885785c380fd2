//go:build !linux

package control

import (
	"net"
	"syscall"
)

// Without such a kernel limit, only pings detect a dead network.
func setUserTimeout(net.Conn) {}

func controlSocket(string, string, syscall.RawConn) error { return nil }

func readTCP(net.Conn) (tcpState, bool) { return tcpState{}, false }
