package rdma

import "time"

// Stats are the counts of a node.
type Stats struct {
	BuffersLive int64 // allocated and not freed
	OffersLive  int64 // of these, readable by peers
	BytesLive   int64 // of live buffers, by size class
	// Freed while a READ over verbs could be in progress, and not reused since; their quarantine of 5 ms may be over.
	// They do not block: Alloc waits for one rather than fail.
	BuffersQuarantined int64
	BytesRegistered    int64  // mapped and registered
	BytesMax           int64  // Config.PoolBytes
	Retransmitted      uint64 // TCP segments retransmitted, including to peers that have gone
	Peers              []PeerStats
}

// PeerStats are the counts of one peer.
type PeerStats struct {
	Addr     string
	Provider string
	Echo     Delay // control echo: round trip, answered by the peer's loop
	Reads    Delay // a chain: from Peer.Read to done
	Chains   uint64
	Failed   uint64
	BytesIn  uint64
	Sent     uint64 // messages
	Received uint64 // messages
	Network  NetworkView
}

// LinkStats is the kernel's view of all of a node's links over TCP.
type LinkStats struct {
	Open          int
	Stalled       int           // with an unacknowledged retransmission
	RoundTrip     time.Duration // the longest smoothed round trip
	Retransmitted uint64        // segments retransmitted, including to peers that have gone
}

// Links sums up the kernel's view of the peers.
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
