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
	BytesRegistered    int64  // mapped and registered
	BytesMax           int64  // Config.PoolBytes
	Retransmitted      uint64 // TCP segments that were sent again, also to peers that have gone
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
	Network  NetworkView
}

// LinkStats is what this host's kernel sees of all of a node's links over TCP.
type LinkStats struct {
	Open          int
	Stalled       int           // on which something was sent again and is still not acknowledged
	RoundTrip     time.Duration // the longest, smoothed
	Retransmitted uint64        // segments sent again, also to peers that have gone
}

// Links adds up what the kernel sees of the peers.
func (s Stats) Links() LinkStats {
	found := LinkStats{Retransmitted: s.Retransmitted}
	for _, p := range s.Peers {
		if p.Network.RoundTrip == 0 {
			continue // another provider, or not looked at yet
		}
		found.Open++
		found.RoundTrip = max(found.RoundTrip, p.Network.RoundTrip)
		if p.Network.Stalled > 0 {
			found.Stalled++
		}
	}
	return found
}

// Delay holds percentiles over a sliding window of about 20 s.
type Delay struct {
	Count          uint64
	P50, P99, P999 time.Duration
}
