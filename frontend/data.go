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

// Errors of Client.Buffer.
var (
	ErrTooLarge = rdma.ErrTooLarge // more than BufferMax
	ErrNoMemory = rdma.ErrNoMemory // all buffers together exceed DataPlane.PoolBytes
)

// DataPlane configures how backends reach a client's registered memory, to read inputs and send outputs. The zero
// value works on one host.
type DataPlane struct {
	Listen    string        // host:port that backends connect to; "127.0.0.1:0" when empty
	Advertise string        // host or host:port that backends dial; empty: the listen address
	Providers []string      // allowed providers, best first, of local, verbs, shm, tcp; empty: all, in this order
	TLS       *tls.Config   // for TCP; excludes verbs unless Providers names it. Nil: none
	PoolBytes int64         // limit of registered memory; 0: 1 GiB
	Stall     time.Duration // a backend without progress for this long is cut off; 0: 2 s
	Logger    *slog.Logger  // nil: the client's
}

// openNode opens the data plane; receive gets the outputs.
func (o *Options) openNode(receive func(*rdma.Peer, []byte)) (*rdma.Node, error) {
	d := &o.Data
	return rdma.Open(rdma.Config{Listen: d.Listen, Advertise: d.Advertise, Providers: d.Providers, TLS: d.TLS, PoolBytes: d.PoolBytes,
		Stall: d.Stall, Token: o.Token, Logger: cmp.Or(d.Logger, o.Logger), Receive: receive})
}

// DataStats are the counts of a client's data plane.
type DataStats struct {
	BuffersLive     int64 // not freed yet
	BytesLive       int64 // their memory, by size class
	BytesRegistered int64 // of registered memory
	BytesMax        int64 // DataPlane.PoolBytes
	// The kernel's view of the links over TCP.
	Links         int
	LinksStalled  int           // with an unacknowledged retransmission
	RoundTrip     time.Duration // the longest smoothed round trip
	Retransmitted uint64        // segments retransmitted
	Peers         []PeerStats
}

// PeerStats describes one backend.
type PeerStats struct {
	Addr     string
	Provider string        // in use for reads: local, verbs, shm or tcp
	EchoP50  time.Duration // round trip, over about the last 20 s
	EchoP99  time.Duration
	Outputs  uint64 // messages received from it
}

// dataStats converts a node's counts.
func dataStats(n rdma.Stats) DataStats {
	s := DataStats{BuffersLive: n.BuffersLive, BytesLive: n.BytesLive, BytesRegistered: n.BytesRegistered, BytesMax: n.BytesMax}
	links := n.Links()
	s.Links, s.LinksStalled, s.RoundTrip, s.Retransmitted = links.Open, links.Stalled, links.RoundTrip, links.Retransmitted
	for _, p := range n.Peers {
		s.Peers = append(s.Peers, PeerStats{Addr: p.Addr, Provider: p.Provider, EchoP50: p.Echo.P50, EchoP99: p.Echo.P99, Outputs: p.Received})
	}
	return s
}
