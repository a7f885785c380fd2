package control

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// watch gives the connection up when no frame was heard for QuietMax. It ends with the writer.
func watch(w *writer, heard *atomic.Uint32) {
	t := time.NewTicker(QuietMax)
	defer t.Stop()
	last := heard.Load()
	for {
		select {
		case <-w.done:
			return
		case <-t.C:
		}
		n := heard.Load()
		if n == last {
			w.close(fmt.Errorf("%w: nothing heard for %v", ErrQuiet, QuietMax))
			return
		}
		last = n
	}
}

// clientTLS wraps conn when the options ask for TLS; the server's name defaults to the host dialled.
func clientTLS(conn net.Conn, o DialOptions) net.Conn {
	if o.TLS == nil {
		return conn
	}
	c := o.TLS.Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(o.Addr)
	}
	return tls.Client(conn, c)
}
