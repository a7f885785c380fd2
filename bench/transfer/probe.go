package transfer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma"
)

// probe is the measuring node. A measurement begins where the previous one ended, on the loop that completed it, as
// in the reference: no other goroutine has to be woken in between.
type probe struct {
	node  *rdma.Node
	peers []*rdma.Peer
	chain [][]rdma.Read
	dst   []*rdma.Buffer
	msg   []byte

	one   bool // reads are from one peer, as perftest's
	op    string
	epoch time.Time     // origin of the times
	began time.Duration // also the end of the previous measurement, as in the references: one clock reading each
	turn  int
	more  int          // measurements still to begin
	to    []int64      // owned by the completing goroutine, until ended
	left  atomic.Int32 // completions until the measurement ends
	ended chan error   // the round is over
	done  func(error)
}

// newProbe opens a node, connects it to the peers, and allocates a buffer for each peer's bytes.
func newProbe(ctx context.Context, c Config, provider string, ends []endpoint) (*probe, error) {
	p := &probe{epoch: time.Now(), ended: make(chan error, 64), msg: make([]byte, echoBytes)}
	p.done, p.one = p.completeCall, provider == "verbs"

	var err error
	pool := int64(4 * c.Peers * c.Bytes)
	p.node, err = rdma.Open(nodeConfig(provider, c.Listen, pool, c.Spin, func(*rdma.Peer, []byte) { p.done(nil) }))

	// In a network namespace of its own a child has an address that this process lacks.
	if c.NetNS != "" && err != nil {
		p.node, err = rdma.Open(nodeConfig(provider, "127.0.0.1", pool, c.Spin, func(*rdma.Peer, []byte) { p.done(nil) }))
	}
	if err != nil {
		return nil, err
	}

	for _, e := range ends {
		peer, err := p.node.Connect(ctx, e.Addr)
		if err != nil {
			p.closeProbe()
			return nil, err
		}

		b, err := p.node.Alloc(c.Bytes)
		if err != nil {
			p.closeProbe()
			return nil, err
		}

		p.peers = append(p.peers, peer)
		p.dst = append(p.dst, b)
		p.chain = append(p.chain, []rdma.Read{{Dst: b.Bytes(), Src: e.Remote}})
	}
	return p, nil
}

// measureCalls appends n latencies of op in ns, each from the first call to the last completion.
func (p *probe) measureCalls(op string, n int, to []int64) ([]int64, error) {
	// Completions begin all further calls.
	p.op, p.more, p.to = op, n, to
	p.began = time.Since(p.epoch)
	p.beginCall()

	late := time.NewTimer(roundMax)
	defer late.Stop()
	select {
	case err := <-p.ended:
		return p.to, err
	case <-late.C:
		return to, fmt.Errorf("%d completions did not come within %v", n, roundMax)
	}
}

// beginCall begins one call of the op. completeCall ends it.
func (p *probe) beginCall() {
	p.more--
	p.left.Store(1)
	if p.op == "incast" {
		p.left.Store(int32(len(p.peers)))
	}

	switch p.op {
	case "echo":
		if err := p.peers[0].Send(p.msg); err != nil {
			p.ended <- err
		}
	case "read":
		// A verbs reference reads from one peer, and ours does the same; otherwise the reads cycle through all peers.
		if !p.one {
			p.turn = (p.turn + 1) % len(p.peers)
		}
		p.peers[p.turn].Read(p.chain[p.turn], p.done)
	case "incast":
		for i, peer := range p.peers {
			peer.Read(p.chain[i], p.done)
		}
	}
}

// completeCall is called for each completion: by a loop, or within Read.
func (p *probe) completeCall(err error) {
	if err != nil {
		p.ended <- err
		return
	}

	// An incast ends with its last read.
	if p.left.Add(-1) != 0 {
		return
	}

	// One clock reading ends this call and begins the next, as in the references.
	now := time.Since(p.epoch)
	p.to = append(p.to, int64(now-p.began))
	p.began = now

	if p.more == 0 {
		p.ended <- nil
		return
	}
	p.beginCall()
}

// closeProbe frees the buffers and closes the node.
func (p *probe) closeProbe() {
	for _, b := range p.dst {
		b.Free()
	}
	p.node.Close()
}
