package rdma

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"strings"

	"downbeat.dev/rdma/stream"
)

// address is a node's address, as returned by Node.Addr.
type address struct {
	text     string // as given
	hostport string
	id       stream.NodeID
	known    bool // it contains a node's id; one that a person wrote does not
}

// wantedNode returns the node that must answer there; nil: any node.
func (a address) wantedNode() *stream.NodeID {
	if !a.known {
		return nil
	}
	return &a.id
}

// parseAddress parses an address.
func parseAddress(text string) (address, error) {
	// An id behind # identifies one run of a node (decision 0024); without it any node that listens there will do.
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

// socketName is the abstract Unix socket of a node. It can be reached only from the same host (and network
// namespace), and a crash leaves nothing behind.
func socketName(id stream.NodeID) string { return "@downbeat-rdma-" + hex.EncodeToString(id[:]) }

func dialUnix(ctx context.Context, name string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", name)
}

// advertised returns the address that peers dial: the listen address, or Config.Advertise.
func (n *Node) advertised() string {
	host, port, _ := net.SplitHostPort(n.tcp.Addr().String())

	// The unspecified address is no address for peers.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = outwardAddress()
	}

	if a := n.cfg.Advertise; a != "" {
		host = strings.Trim(a, "[]")
		if h, p, err := net.SplitHostPort(a); err == nil {
			host, port = h, p
		}
	}
	return net.JoinHostPort(host, port) + "#" + hex.EncodeToString(n.id[:])
}

// outwardAddress returns this host's first address that other hosts may reach.
func outwardAddress() string {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}
