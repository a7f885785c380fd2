package rdma

import "fmt"

// A peer that requests bytes and takes them slowly, or not at all, makes this node keep them. The bytes per peer are
// limited (stream.OwnedMax), and so is their sum: with thousands of peers the first limit alone would let them take
// all memory of the host. Beyond the sum's limit, the peer with most bytes waiting is cut off, and not the next one
// to ask: a peer that takes what it requests has almost nothing waiting, so it is never the one (decision 0029).

// owedMax bounds the copied bytes that wait for all peers of a node.
const owedMax = 1 << 30

func errHoards(bytes, bound int) error {
	return fmt.Errorf("%w: it has not taken %d bytes, more than any other, and %d may wait for all peers", ErrPeerLost, bytes, bound)
}

// cutHoarders cuts off the peers with most bytes waiting until the others are within the limit. Only the node's first
// loop calls it.
func (n *Node) cutHoarders() {
	// Copy the list: a link must not be asked under the node's lock.
	n.mu.Lock()
	peers := n.watched[:0]
	for p := range n.peers {
		peers = append(peers, p)
	}
	n.mu.Unlock()

	total := 0
	for _, p := range peers {
		total += p.link.owed()
	}

	for total > n.cfg.owedMax {
		most, bytes := (*Peer)(nil), 0
		for _, p := range peers {
			if owed := p.link.owed(); owed > bytes {
				most, bytes = p, owed
			}
		}
		if most == nil {
			break
		}
		most.cutPeer(errHoards(bytes, n.cfg.owedMax))
		total -= bytes
	}

	clear(peers)
	n.watched = peers[:0]
}
