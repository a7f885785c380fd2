package rdma

import "time"

// Stats is what a node counts.
type Stats struct {
	BuffersLive int64 // allocated and not freed
	OffersLive  int64 // of these, readable by peers
	BytesLive   int64 // of live buffers, by size class
	// Freed while a READ over verbs could be under way, and not reused since; their quarantine of 5 ms
	// may be over. Never an obstacle: Alloc waits for one rather than fail.
	BuffersQuarantined int64
	BytesRegistered    int64 // mapped and registered
	BytesMax           int64 // Config.PoolBytes
	Peers              []PeerStats
}

// PeerStats is what a node knows about one peer.
type PeerStats struct {
	Addr     string
	Provider string
	Echo     Delay // control echo: there and back, answered by the peer's loop
	Reads    Delay // a chain: from Peer.Read to done
	Chains   uint64
	Failed   uint64
	BytesIn  uint64
	Sent     uint64 // messages
	Received uint64 // messages
}

// Delay holds percentiles over a sliding window of about 20 s.
type Delay struct {
	Count          uint64
	P50, P99, P999 time.Duration
}
