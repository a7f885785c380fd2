package observe

import (
	"net"
	"net/http"
	"time"

	"downbeat.dev/core/guard"
)

// Limits of the address that a process tells of itself on. A profile may take as long as writeMost.
const (
	readMost       = 5 * time.Second
	writeMost      = 5 * time.Minute
	idleMost       = 2 * time.Minute
	connectionMost = 1024
	perAddressMost = 256
)

// NewServer returns a server for a Handler on an address of its own: callers who send, take or ask nothing are let go.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: time.Second, ReadTimeout: readMost, WriteTimeout: writeMost, IdleTimeout: idleMost, MaxHeaderBytes: 64 << 10}
}

// Bound bounds the connections of such a server's listener. At the bound, the one that has been silent longest is closed
// for the one that comes.
func Bound(l net.Listener) net.Listener {
	return guard.NewConnections(guard.Limits{All: connectionMost, PerAddress: perAddressMost}, true).Bound(l)
}
