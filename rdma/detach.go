package rdma

// A peer on a slow link may take seconds over the bytes that it asked for. Their owner does not wait for that:
// what the peer has not taken shortly after the end of an offer is copied, and leaves from the copy. To cut the
// connection would cost the peer's other reads, which may be well; to give the owner other memory would leave
// it with slices of the old (decision 0043).

// copiedMax bounds the bytes of a node's copies; a peer that is owed more is cut.
const copiedMax = 64 << 20

// detach copies what is queued of b for any peer, so that b's owner may write b. What a system call is taking from
// b at this moment stays pinned: the caller looks again.
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
