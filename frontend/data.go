package frontend

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"time"

	"downbeat.dev/rdma"
)

// BufferMax bounds one Buffer, in bytes.
const BufferMax = rdma.BufferMax

// Ends of Client.Buffer.
var (
	ErrTooLarge = rdma.ErrTooLarge // more than BufferMax
	ErrNoMemory = rdma.ErrNoMemory // all buffers together are more than DataPlane.PoolBytes
)

// DataPlane says how backends reach a client's registered memory, from which they read inputs and to which they send
// outputs. The zero value is usable on one host.
type DataPlane struct {
	Listen    string        // host:port that backends connect to; "127.0.0.1:0" when empty
	Advertise string        // host or host:port that they dial; empty: the address listened on
	Providers []string      // allowed ones, best first, of local, verbs, shm, tcp; empty: all, in this order
	TLS       *tls.Config   // for TCP; leaves verbs out unless Providers names it. Nil: none
	PoolBytes int64         // bound of registered memory; 1 GiB when 0
	Stall     time.Duration // a backend that makes no progress for so long is cut; 2 s when 0
	Logger    *slog.Logger  // nil: the client's
}

// openNode opens the data plane; outputs come to receive.
func (o *Options) openNode(receive func(*rdma.Peer, []byte)) (*rdma.Node, error) {
	d := &o.Data
	return rdma.Open(rdma.Config{Listen: d.Listen, Advertise: d.Advertise, Providers: d.Providers, TLS: d.TLS, PoolBytes: d.PoolBytes,
		Stall: d.Stall, Token: o.Token, Logger: cmp.Or(d.Logger, o.Logger), Receive: receive})
}

// DataStats is what a client's data plane counts.
type DataStats struct {
	BuffersLive     int64 // that were not freed
	BytesLive       int64 // of them, by size class
	BytesRegistered int64 // of memory that is registered
	BytesMax        int64 // DataPlane.PoolBytes
	// What this host's kernel sees of the links over TCP.
	Links         int
	LinksStalled  int           // on which something was sent again and is still not acknowledged
	RoundTrip     time.Duration // the longest of the links', smoothed
	Retransmitted uint64        // segments that were sent again
	Peers         []PeerStats
}

// PeerStats is what a client knows of one backend.
type PeerStats struct {
	Addr     string
	Provider string        // that carries the reads now: local, verbs, shm or tcp
	EchoP50  time.Duration // there and back, over the last 20 s or so
	EchoP99  time.Duration
	Outputs  uint64 // messages that came from it
}

// dataStats shows a node's counts to programs.
func dataStats(n rdma.Stats) DataStats {
	s := DataStats{BuffersLive: n.BuffersLive, BytesLive: n.BytesLive, BytesRegistered: n.BytesRegistered, BytesMax: n.BytesMax}
	links := n.Links()
	s.Links, s.LinksStalled, s.RoundTrip, s.Retransmitted = links.Open, links.Stalled, links.RoundTrip, links.Retransmitted
	for _, p := range n.Peers {
		s.Peers = append(s.Peers, PeerStats{Addr: p.Addr, Provider: p.Provider, EchoP50: p.Echo.P50, EchoP99: p.Echo.P99, Outputs: p.Received})
	}
	return s
}
