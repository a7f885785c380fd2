package control

import "time"

// LinkStats are what this host's kernel sees of the TCP links with peers of one kind: whether the network delivers, before
// anybody's deadline tells.
type LinkStats struct {
	Peers         string // frontend, backend or standby
	Links         int
	Stalled       int           // links on which something was sent again and is still not acknowledged
	RoundTrip     time.Duration // the longest of the links' smoothed ones
	Retransmitted uint64        // segments sent again since the server began, also over links that have ended
}

// tcpState is what the kernel tells of one connection.
type tcpState struct {
	roundTrip     time.Duration // smoothed
	variance      time.Duration // mean deviation of it
	retransmitted uint32        // segments sent again since the connection began
	stalled       bool
}

// stallLeast is for how long nothing was acknowledged before a link stalls: one packet that was lost, or a host that stumbled, is none.
const stallLeast = 150 * time.Millisecond

// linkKinds are the kinds of sessions that have links, as LinkStats names them.
var linkKinds = [...]string{frontendSession: "frontend", backendSession: "backend", standbySession: "standby"}

// linkLook adds up what one look at the links has found, by kind of session.
type linkLook [len(linkKinds)]LinkStats

// addLink counts a link; before is what the look before found of it.
func (l *linkLook) addLink(kind sessionKind, now, before tcpState) {
	s := &l[kind]
	s.Links++
	s.RoundTrip = max(s.RoundTrip, now.roundTrip)

	// The kernel counts in 32 bits, and the difference is right also when they have gone around.
	s.Retransmitted += uint64(now.retransmitted - before.retransmitted)
	if now.stalled {
		s.Stalled++
	}
}

// LinkStats returns what was seen of the links at most 100 ms ago, for each kind of peer. Where the kernel does not tell,
// as outside of Linux, and of links within a process there is nothing to see.
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

// lookAtLinks asks the kernel about each session's connection, and has the engine keep batches from backends at which nothing
// arrives. It is the pinger's, after each round of pings.
func (s *Server) lookAtLinks(live []*session) {
	var found linkLook
	var stalled []*session
	for _, c := range live {
		kind := sessionKind(c.kind.Load())
		if kind == strangerSession {
			continue // its hello is under way
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

// keepLook makes a look the latest. Retransmissions go on from those before.
func (s *Server) keepLook(found *linkLook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind := range found {
		found[kind].Retransmitted += s.links[kind].Retransmitted
	}
	s.links = *found
}
