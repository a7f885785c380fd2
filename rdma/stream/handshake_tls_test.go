package stream

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"
)

// TestTLSStall shows that a peer that stalls or leaves during TLS's handshake is lost. This is not a certificate
// error, after which no other provider would be tried.
func TestTLSStall(t *testing.T) {
	for name, leaves := range map[string]bool{"stalls": false, "leaves": true} {
		here, there := net.Pipe()
		go func() {
			var b [4096]byte
			there.Read(b[:])
			if leaves {
				there.Close()
				return
			}
			here.SetDeadline(time.Now().Add(20 * time.Millisecond))
		}()
		_, err := tlsBinding(tls.Client(here, &tls.Config{InsecureSkipVerify: true}))
		if !errors.Is(err, ErrPeerLost) || errors.Is(err, ErrAuth) {
			t.Errorf("a peer that %s: %v, want ErrPeerLost", name, err)
		}
		here.Close()
		there.Close()
	}
}
