package rdma

import (
	"context"
	"fmt"
	"sync"

	"downbeat.dev/rdma/stream"
)

// dial is a connection attempt, or a connected peer, at an address.
type dial struct {
	ready chan struct{} // closed when peer or err is set
	peer  *Peer
	err   error
}

// nodes of this process by id, for the local provider.
var nodes struct {
	sync.Mutex
	byID map[stream.NodeID]*Node
}

// Connect returns the peer at addr, over the best provider that both ends have. Peers are cached: while one lives,
// Connect to the same address returns it at once; concurrent calls share one dial.
func (n *Node) Connect(ctx context.Context, addr string) (*Peer, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, ErrClosed
	}

	// All callers for one address share one dial, which outlives any of them.
	d := n.dials[addr]
	if d == nil {
		d = &dial{ready: make(chan struct{})}
		n.dials[addr] = d
		n.wait.Add(1)
		go func() {
			defer n.wait.Done()
			n.dial(d, addr)
		}()
	}
	n.mu.Unlock()

	select {
	case <-d.ready:
		return d.peer, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect %s: %w", addr, ctx.Err())
	}
}

// dial connects and publishes the result. A failure is forgotten, so that the next Connect tries again.
func (n *Node) dial(d *dial, addr string) {
	p, err := n.connectByProviders(addr)
	n.mu.Lock()
	if err != nil {
		d.err = fmt.Errorf("connect %s: %w", addr, err)
	} else {
		d.peer = p
	}

	// A later caller must not get a peer that is lost already.
	if n.dials[addr] == d && (err != nil || p.Err() != nil) {
		delete(n.dials, addr)
	}
	close(d.ready)
	n.mu.Unlock()
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// admitPeer adds a peer, unless there are too many or the node is closing. With reserved it uses up a reserved place.
func (n *Node) admitPeer(p *Peer, reserved bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if reserved {
		n.reserved--
	}
	if n.closed || len(n.peers)+n.reserved >= n.cfg.PeersMax {
		return false
	}
	n.peers[p] = struct{}{}
	if p.isApart() {
		n.apart.Add(1)
	}
	return true
}

// forgetPeer removes a lost peer.
func (n *Node) forgetPeer(p *Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()

	// The count of retransmitted segments must not fall when a peer goes.
	if _, known := n.peers[p]; known {
		n.resent += uint64(p.network.resent.Load())
		if p.isApart() {
			n.apart.Add(-1)
		}
	}
	delete(n.peers, p)

	// The address may have been dialled again: that peer stays.
	if d := n.dials[p.addr]; d != nil && d.peer == p {
		delete(n.dials, p.addr)
	}
}
