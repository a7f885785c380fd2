package rdma

// A peer on a slow link may take seconds to read the bytes that it requested. Their owner does not wait for that:
// shortly after the end of an offer, the remaining bytes are copied and sent from the copy. Cutting the connection
// would end the peer's other reads, which may be fine; giving the owner other memory would leave it with slices of
// the old (decision 0043).

// copiedMax bounds the bytes of a node's copies; a peer that needs more is cut off.
const copiedMax = 64 << 20

// detach copies the queued bytes of b for all peers, so that b's owner may write b. Bytes that a system call is
// reading from b at this moment stay pinned: the caller looks again.
func (n *Node) detach(b *Buffer) {
	n.mu.Lock()
	peers := make([]*Peer, 0, len(n.peers))

	for p := range n.peers {
		peers = append(peers, p)
	}
	n.mu.Unlock()

	for _, p := range peers {
		p.link.detach(b)
	}
}
