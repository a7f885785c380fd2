package rdma

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strings"

	"downbeat.dev/rdma/stream"
)

// address is where a node is reached, as Node.Addr says it.
type address struct {
	text     string // as it was given
	hostport string
	id       stream.NodeID
	known    bool // it names a node; one that a person wrote does not
}

// wanted is the node that must answer there; nil: whoever does.
func (a address) wanted() *stream.NodeID {
	if !a.known {
		return nil
	}
	return &a.id
}

// parseAddress takes an address apart.
func parseAddress(text string) (address, error) {
	// An id behind # names one run of a node (decision 0024); without one whoever listens there is meant.
	hostport, id, known := strings.Cut(text, "#")
	a := address{text: text, hostport: hostport, known: known}
	if known {
		b, err := hex.DecodeString(id)
		if err != nil || len(b) != len(a.id) {
			return a, fmt.Errorf("%w: address %q: want host:port#%d hex digits", ErrInvalid, text, 2*len(a.id))
		}
		copy(a.id[:], b)
	}

	if _, _, err := net.SplitHostPort(hostport); err != nil {
		return a, fmt.Errorf("%w: address %q: %w", ErrInvalid, text, err)
	}
	return a, nil
}

// socketName is the abstract Unix socket of a node: it can be reached from the same host (and
// network namespace) only, and nothing is left behind by a crash.
func socketName(id stream.NodeID) string { return "@downbeat-rdma-" + hex.EncodeToString(id[:]) }

func dialUnix(ctx context.Context, name string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", name)
}

// advertised is what peers dial: where the node listens, or what Config.Advertise says.
func (n *Node) advertised() string {
	host, port, _ := net.SplitHostPort(n.tcp.Addr().String())

	// A node that listens everywhere has no address of its own to tell.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = outward()
	}

	if a := n.cfg.Advertise; a != "" {
		host = strings.Trim(a, "[]")
		if h, p, err := net.SplitHostPort(a); err == nil {
			host, port = h, p
		}
	}
	return net.JoinHostPort(host, port) + "#" + hex.EncodeToString(n.id[:])
}

// outward is this host's first address that other hosts may reach.
func outward() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}
