package rdma

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKernelSeesADarkPeer shows that data for an unreachable peer is retransmitted and stalls, long before the peer
// is disconnected and even without reads, and no longer after the peer is back.
func TestKernelSeesADarkPeer(t *testing.T) {
	for carrier, c := range carriers(t) {
		if c.Providers[0] != "tcp" {
			continue
		}
		t.Run(carrier, func(t *testing.T) {
			t.Parallel() // they mostly wait
			reader, _, p, path := sickPeer(t, c)
			until := func(what string, there func(s PeerStats) bool) {
				t.Helper()
				for end := time.Now().Add(patient); ; time.Sleep(time.Millisecond) {
					s := reader.Stats()
					if len(s.Peers) != 1 {
						t.Fatalf("%s: %d peers, %v", what, len(s.Peers), p.Err())
					}
					if there(s.Peers[0]) {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("%s: %+v", what, s.Peers[0])
					}
				}
			}

			until("a look", func(s PeerStats) bool { return s.Network.RoundTrip > 0 })
			if err := path.DropArrivals(true); err != nil {
				t.Fatal(err)
			}
			// If the answer to an echo was lost, no other echo is sent, and the kernel has nothing to retransmit.
			ping := time.AfterFunc(2*echoEvery, func() { p.Ping(func(error) {}) })
			defer ping.Stop()
			until("a stall", func(PeerStats) bool { return p.Stalled() > 300*time.Millisecond })
			until("retransmissions", func(s PeerStats) bool { return s.Network.Retransmitted > 0 && s.Network.Stalled > 0 })

			if err := path.DropArrivals(false); err != nil {
				t.Fatal(err)
			}
			until("the stall's end", func(s PeerStats) bool { return s.Network.Stalled == 0 })
			before := reader.Stats().Retransmitted
			p.Close()
			<-p.gone
			if s := reader.Stats(); len(s.Peers) != 0 || s.Retransmitted < before || before == 0 {
				t.Errorf("%d segments sent again before the peer's end, %d after it", before, s.Retransmitted)
			}
		})
	}
}

// TestStallIsCountedFromItsFirstTimeout shows that the time of a stall is the sum of the kernel's timeouts, which
// double each time.
func TestStallIsCountedFromItsFirstTimeout(t *testing.T) {
	var n network
	n.noteKernelInfo(time.Second, &unix.TCPInfo{Retransmits: 2, Backoff: 2, Unacked: 1, Rto: 200_000, Rtt: 80, Rttvar: 20, Total_retrans: 3})
	if since := time.Duration(n.stalledSince.Load()); since != 850*time.Millisecond {
		t.Errorf("after timeouts of 50 and 100 ms it stalls since %v, want 850ms", since)
	}
	n.noteKernelInfo(2*time.Second, &unix.TCPInfo{Retransmits: 4, Backoff: 4, Unacked: 1, Rto: 800_000})
	if since := time.Duration(n.stalledSince.Load()); since != 850*time.Millisecond {
		t.Errorf("a later look says since %v, want 850ms", since)
	}
	for _, well := range []unix.TCPInfo{{Retransmits: 1}, {Unacked: 3}} {
		n.stalledSince.Store(1)
		if n.noteKernelInfo(3*time.Second, &well); n.stalledSince.Load() != 0 {
			t.Errorf("it stalls with %+v", well)
		}
	}
}

// TestKernelsVarianceCountsWhereItSaysMore shows that the kernel's variance does not count beside echoes that were as
// slow, nor if acknowledgements were delayed.
func TestKernelsVarianceCountsWhereItSaysMore(t *testing.T) {
	for _, c := range []struct{ trip, variance, slowest, want time.Duration }{
		{200 * time.Microsecond, 300 * time.Microsecond, 500 * time.Microsecond, 1400 * time.Microsecond},
		{200 * time.Microsecond, 20 * time.Microsecond, 500 * time.Microsecond, 0},
		{20 * time.Millisecond, 5 * time.Millisecond, 500 * time.Microsecond, 0},
		{0, 0, 500 * time.Microsecond, 0},
	} {
		var n network
		n.noteKernelInfo(time.Second, &unix.TCPInfo{Rtt: uint32(c.trip.Microseconds()), Rttvar: uint32(c.variance.Microseconds())})
		if n.noteTail(c.slowest); time.Duration(n.tail.Load()) != c.want {
			t.Errorf("round trips of %v ± %v, echoes up to %v: %v, want %v", c.trip, c.variance, c.slowest, time.Duration(n.tail.Load()), c.want)
		}
	}
}

// TestSegmentsAreSentAgainSoon shows that the kernels of both ends are asked to retransmit soon, if they support it.
func TestSegmentsAreSentAgainSoon(t *testing.T) {
	for carrier, c := range carriers(t) {
		if c.Providers[0] != "tcp" {
			continue
		}
		reader, owner, p := pair(t, c)
		for end := time.Now().Add(patient); len(owner.Stats().Peers) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the owner has no peer")
			}
		}
		for _, n := range []*Node{reader, owner} {
			n.mu.Lock()
			for end := range n.peers {
				end.link.(*conn).socket.onDescriptor(func(fd int) {
					after, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MIN_US)
					if err != nil {
						t.Logf("this kernel does not let a connection choose: %v", err)
					} else if soonest := int(resendAfter.Microseconds()); after < soonest || after > soonest+10_000 { // it counts in ticks
						t.Errorf("%s: segments are sent again after %d µs, want %v", carrier, after, resendAfter)
					}
				})
			}
			n.mu.Unlock()
		}
		p.Close()
	}
}
