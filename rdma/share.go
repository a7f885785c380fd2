package rdma

import "fmt"

// A peer that asks and does not take, or takes slowly, has this node keep bytes for it. What one peer may have is
// bounded (stream.OwnedMax), and so is what all have together: with thousands of peers the first bound alone would let
// them take all memory of the host. Where that is passed, whoever has most gives way, and not whoever asks next: a peer
// that takes what it asks for has next to nothing waiting, so it is never the one (decision 0029).

// owedMax bounds the bytes of copies that wait for all peers of a node.
const owedMax = 1 << 30

func errHoards(bytes, bound int) error {
	return fmt.Errorf("%w: it has not taken %d bytes, more than any other, and %d may wait for all peers", ErrPeerLost, bytes, bound)
}

// cutHoarders cuts the peers that have most waiting until the others are within the bound. Only the node's first loop
// calls it.
func (n *Node) cutHoarders() {
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
