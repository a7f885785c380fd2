package rdma

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What a kernel is asked to do on TCP connections of the data plane, where it can (Linux 6.15 and later; decision 0195).
const (
	// resendAfter is when a segment that was not acknowledged is sent again at the earliest. Linux waits 200 ms, longer than
	// most deadlines; less than the 40 ms for which another host may hold an acknowledgement back would send segments twice.
	resendAfter = 50 * time.Millisecond
	// acknowledgeWithin is for how long an acknowledgement waits for something to travel with, so that round trips are the network's.
	acknowledgeWithin = 5 * time.Millisecond
)

// NetworkView is what this host's kernel sees of the way to a peer over TCP. It is zero over other providers.
type NetworkView struct {
	RoundTrip     time.Duration // smoothed
	Variance      time.Duration // mean deviation of it
	Retransmitted uint64        // segments sent again since the connection began
	Stalled       time.Duration // for how long, at least, nothing that was sent has been acknowledged; 0: the network delivers
}

// network is a peer's NetworkView as the loop last saw it.
type network struct {
	roundTrip, variance atomic.Int64
	tail                atomic.Int64 // ns that a round trip may take, 0 where this end's own echoes say as much: see Peer.Tail
	resent              atomic.Uint32
	stalledSince        atomic.Int64  // node time; 0: it does not stall
	moved               uint64        // the loop's: messages and chains at the latest look
	asked               time.Duration // the loop's: when that was
}

// Stalled is for how long at least, as this host's kernel sees it, nothing that was sent to the peer has been acknowledged
// although it was sent again; 0 while the network delivers, and where the kernel does not tell. A kernel doubles its pauses, so that
// the peer is not heard of again much sooner than after as long once more. It takes two atomic reads.
func (p *Peer) Stalled() time.Duration {
	since := p.network.stalledSince.Load()
	if since == 0 {
		return 0
	}
	return max(p.node.now()-time.Duration(since), 1)
}

// Tail is what a round trip to the peer may take by the kernel's variance of it, RFC 6298's bound, or 0 where the kernel
// tells nothing, or tells of more than the network: a mean that is longer than this end's slowest echoes counts the time for which the
// peer's host held acknowledgements back.
func (p *Peer) Tail() time.Duration { return time.Duration(p.network.tail.Load()) }

// view returns what is known at now.
func (p *Peer) view() NetworkView {
	n := &p.network
	return NetworkView{RoundTrip: time.Duration(n.roundTrip.Load()), Variance: time.Duration(n.variance.Load()),
		Retransmitted: uint64(n.resent.Load()), Stalled: p.Stalled()}
}

// noteKernelInfo takes over what the kernel told.
func (n *network) noteKernelInfo(now time.Duration, info *unix.TCPInfo) {
	n.roundTrip.Store(int64(info.Rtt) * int64(time.Microsecond))
	n.variance.Store(int64(info.Rttvar) * int64(time.Microsecond))
	n.resent.Store(info.Total_retrans)

	// Retransmits counts timeouts in a row; one acknowledgement sets it back.
	if info.Retransmits == 0 || info.Unacked == 0 {
		n.stalledSince.Store(0)
		return
	}

	// The timeout has doubled with each, so that those that have passed add up to it but for the first.
	if n.stalledSince.Load() == 0 {
		passed := time.Duration(info.Rto-info.Rto>>min(info.Backoff, 31)) * time.Microsecond
		n.stalledSince.Store(int64(max(now-passed, 1)))
	}
}

// noteTail takes the bound of round trips over, beside the slowest of this end's own echoes.
func (n *network) noteTail(slowest time.Duration) {
	trip, variance := time.Duration(n.roundTrip.Load()), time.Duration(n.variance.Load())
	tail := trip + 4*variance
	if trip > slowest || tail <= slowest {
		tail = 0
	}
	n.tail.Store(int64(tail))
}
