package observe

import (
	"net"
	"net/http"
	"time"

	"downbeat.dev/core/guard"
)

// Limits of the separate address. A profile may take as long as writeMost.
const (
	readMost       = 5 * time.Second
	writeMost      = 5 * time.Minute
	idleMost       = 2 * time.Minute
	connectionMost = 1024
	perAddressMost = 256
)

// NewServer returns a server for a Handler on a separate address. Its timeouts disconnect idle callers.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: time.Second, ReadTimeout: readMost, WriteTimeout: writeMost, IdleTimeout: idleMost, MaxHeaderBytes: 64 << 10}
}

// Bound limits the connections of such a server's listener. At the limit, a new connection displaces the one that has
// been silent longest.
func Bound(l net.Listener) net.Listener {
	return guard.NewConnections(guard.Limits{All: connectionMost, PerAddress: perAddressMost}, true).Bound(l)
}
