package rdma

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel settings for TCP connections of the data plane, if supported (Linux 6.15 and later; decision 0195).
const (
	// resendAfter is the least time after which an unacknowledged segment is retransmitted. Linux waits 200 ms,
	// longer than most deadlines. Less than the 40 ms for which another host may delay an acknowledgement would send
	// segments twice.
	resendAfter = 50 * time.Millisecond
	// acknowledgeWithin is how long an acknowledgement may be delayed, so that round trips measure the network.
	acknowledgeWithin = 5 * time.Millisecond
)

// NetworkView is the kernel's view of the connection to a peer over TCP. It is zero over other providers.
type NetworkView struct {
	RoundTrip     time.Duration // smoothed
	Variance      time.Duration // mean deviation of it
	Retransmitted uint64        // segments retransmitted since the connection opened
	Stalled       time.Duration // least time for which nothing that was sent has been acknowledged; 0: the network delivers
}

// network is a peer's NetworkView at the loop's last look.
type network struct {
	roundTrip, variance atomic.Int64
	tail                atomic.Int64 // ns that a round trip may take; 0 if the echoes show as much, see Peer.Tail
	resent              atomic.Uint32
	stalledSince        atomic.Int64  // node time; 0: not stalled
	moved               uint64        // owned by the loop: messages and chains at the latest look
	asked               time.Duration // owned by the loop: time of that look
}

// Stalled returns the least time for which the kernel has seen no acknowledgement of data sent to the peer, although
// it was retransmitted. It is 0 while the network delivers, and if the kernel does not report it. A kernel doubles
// its pauses, so the peer will not be heard from much sooner than after the same time again. It takes two atomic
// reads.
func (p *Peer) Stalled() time.Duration {
	since := p.network.stalledSince.Load()
	if since == 0 {
		return 0
	}
	return max(p.node.now()-time.Duration(since), 1)
}

// Tail returns the time that a round trip to the peer may take by the kernel's variance (RFC 6298's bound). It is 0
// if the kernel reports nothing, or more than the network: a mean above this end's slowest echoes includes the time
// for which the peer's host delayed acknowledgements.
func (p *Peer) Tail() time.Duration { return time.Duration(p.network.tail.Load()) }

// stateAt returns the state known at now.
func (p *Peer) stateAt() NetworkView {
	n := &p.network
	return NetworkView{RoundTrip: time.Duration(n.roundTrip.Load()), Variance: time.Duration(n.variance.Load()),
		Retransmitted: uint64(n.resent.Load()), Stalled: p.Stalled()}
}

// noteKernelInfo stores the kernel's report.
func (n *network) noteKernelInfo(now time.Duration, info *unix.TCPInfo) {
	n.roundTrip.Store(int64(info.Rtt) * int64(time.Microsecond))
	n.variance.Store(int64(info.Rttvar) * int64(time.Microsecond))
	n.resent.Store(info.Total_retrans)

	// Retransmits counts consecutive timeouts; an acknowledgement resets it.
	if info.Retransmits == 0 || info.Unacked == 0 {
		n.stalledSince.Store(0)
		return
	}

	// The timeout has doubled with each, so the elapsed ones add up to it, less the first.
	if n.stalledSince.Load() == 0 {
		passed := time.Duration(info.Rto-info.Rto>>min(info.Backoff, 31)) * time.Microsecond
		n.stalledSince.Store(int64(max(now-passed, 1)))
	}
}

// noteTail stores the bound of round trips, given this end's slowest echoes.
func (n *network) noteTail(slowest time.Duration) {
	trip, variance := time.Duration(n.roundTrip.Load()), time.Duration(n.variance.Load())
	tail := trip + 4*variance
	if trip > slowest || tail <= slowest {
		tail = 0
	}
	n.tail.Store(int64(tail))
}
