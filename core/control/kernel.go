package control

import "time"

// LinkStats is the kernel's view of the TCP links with peers of one kind. It shows whether the network delivers
// before any deadline is missed.
type LinkStats struct {
	Peers         string // frontend, backend or standby
	Links         int
	Stalled       int           // links with an unacknowledged retransmission
	RoundTrip     time.Duration // the longest smoothed round trip
	Retransmitted uint64        // segments retransmitted since the server started, including on links that have ended
}

// tcpState is the kernel's state of one connection.
type tcpState struct {
	roundTrip     time.Duration // smoothed
	variance      time.Duration // its mean deviation
	retransmitted uint32        // segments retransmitted since the connection opened
	stalled       bool
}

// stallLeast is the time without an acknowledgement after which a link counts as stalled. It is longer than the
// effect of one lost packet or a short pause of the host.
const stallLeast = 150 * time.Millisecond

// linkKinds are LinkStats' names of the sessions that have links.
var linkKinds = [...]string{frontendSession: "frontend", backendSession: "backend", standbySession: "standby"}

// linkLook sums up one look at the links, by kind of session.
type linkLook [len(linkKinds)]LinkStats

// addLink adds a link; before is its state at the previous look.
func (l *linkLook) addLink(kind sessionKind, now, before tcpState) {
	s := &l[kind]
	s.Links++
	s.RoundTrip = max(s.RoundTrip, now.roundTrip)

	// The difference of the kernel's 32-bit counters is right even after they wrap around.
	s.Retransmitted += uint64(now.retransmitted - before.retransmitted)
	if now.stalled {
		s.Stalled++
	}
}

// LinkStats returns the state of the links at most 100 ms ago, for each kind of peer. It is empty on systems other
// than Linux and for links within a process.
func (s *Server) LinkStats() []LinkStats {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := make([]LinkStats, 0, len(linkKinds)-1)
	for kind := frontendSession; kind <= standbySession; kind++ {
		found := s.links[kind]
		found.Peers = linkKinds[kind]
		all = append(all, found)
	}
	return all
}

// lookAtLinks reads the kernel's state of each session's connection, and makes the engine keep batches from backends
// that nothing reaches. The pinger calls it after each round of pings.
func (s *Server) lookAtLinks(live []*session) {
	var found linkLook
	var stalled []*session
	for _, c := range live {
		kind := sessionKind(c.kind.Load())
		if kind == strangerSession {
			continue // its hello is not complete
		}
		if now, ok := readTCP(c.raw); ok {
			found.addLink(kind, now, c.tcp)
			if now.stalled && !c.tcp.stalled {
				s.log.Warn("link stalls: what is sent is not acknowledged", "peer", c.raw.RemoteAddr().String(), "is", linkKinds[kind])
			}
			if c.tcp = now; now.stalled {
				stalled = append(stalled, c)
			}
			if b := c.backend.Load(); b != nil {
				b.NetworkTrip(now.roundTrip, now.variance)
			}
		}
	}
	s.keepLook(&found)

	// No lock is held: the engine takes its own.
	for _, c := range stalled {
		if b := c.backend.Load(); b != nil {
			b.Stall()
		}
	}
}

// keepLook stores the latest look, adding earlier retransmissions.
func (s *Server) keepLook(found *linkLook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind := range found {
		found[kind].Retransmitted += s.links[kind].Retransmitted
	}
	s.links = *found
}
