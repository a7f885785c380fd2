package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Peer is another node that this one is connected to. All its methods may be called from any goroutine.
type Peer struct {
	node *Node
	addr string
	id   stream.NodeID
	link link // set before any other goroutine knows the peer

	echoes delays
	chains delays

	network network // as the kernel sees it

	read, failed, bytesIn, sent, received atomic.Uint64

	once sync.Once // of losePeer
	err  atomic.Pointer[error]
	gone chan struct{} // closed once lost
}

func newPeer(n *Node, addr string, id stream.NodeID) *Peer {
	return &Peer{node: n, addr: addr, id: id, gone: make(chan struct{})}
}

// isApart reports whether the peer is in another process.
func (p *Peer) isApart() bool {
	_, local := p.link.(*localLink)
	return !local
}

// Read reads a chain of offered buffers, one-sided, in one posted request. done is called exactly once, possibly
// before Read returns, and must not block. It gets nil, a *ChainError for the reads that the peer refused, or
// ErrPeerLost, ErrClosed, ErrTooLarge or ErrInvalid for the whole chain. The chain's slice may be reused when Read
// returns; the Dst bytes belong to the peer until done. At most 1,024 chains with 65,536 reads in total may be in
// progress per peer.
func (p *Peer) Read(chain []Read, done func(error)) { p.ReadEach(chain, nil, done) }

// EachMin is the least length in bytes of a read that is reported individually when it lands.
const EachMin = memory.EachMin

// ReadEach is Read that also reports each read of at least EachMin bytes when it has landed in its Dst: each(i) is
// called at most once for chain[i], before done, on the goroutine that will call done, so these calls never overlap.
// It must not block. The bytes in Dst are not verified before done: a reported read may be among those that done
// names as failed. A read that done does not name has had its valid bytes in Dst since each was called. The call is a
// hint: after a queue pair failed, no more come for the chains in progress.
func (p *Peer) ReadEach(chain []Read, each func(i int), done func(error)) {
	p.post(stream.Request{Reads: chain, Each: each, Done: done})
}

// post posts a valid chain.
func (p *Peer) post(r stream.Request) {
	if err := checkChain(r.Reads); err != nil {
		r.Done(err)
		return
	}
	// A chain that comes too late counts like those that the loss ended.
	if err := p.Err(); err != nil {
		p.finishChain(p.node.now(), r.Reads, err, r.Done)
		return
	}
	p.link.postReads(r)
}

// checkChain refuses a chain that no provider can serve.
func checkChain(chain []Read) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: empty chain", ErrInvalid)
	}
	if len(chain) > ChainMax {
		return fmt.Errorf("%w: chain of %d reads; %d allowed", ErrTooLarge, len(chain), ChainMax)
	}

	total := 0
	for i := range chain {
		if len(chain[i].Dst) != int(chain[i].Src.Length) {
			return fmt.Errorf("%w: read %d: Dst has %d bytes, Src %d", ErrInvalid, i, len(chain[i].Dst), chain[i].Src.Length)
		}
		total += len(chain[i].Dst)
	}
	if total > stream.ChainBytesMax {
		return fmt.Errorf("%w: chain of %d bytes; %d allowed", ErrTooLarge, total, stream.ChainBytesMax)
	}
	return nil
}

// finishChain counts a chain that began at start and calls done.
func (p *Peer) finishChain(start time.Duration, chain []Read, err error, done func(error)) {
	p.finishAt(p.node.now(), start, chain, err, done)
}

func (p *Peer) finishAt(now, start time.Duration, chain []Read, err error, done func(error)) {
	p.read.Add(1)
	if err != nil {
		p.failed.Add(1)
	} else {
		p.chains.addDelay(now, now-start)
		bytes := 0
		for i := range chain {
			bytes += len(chain[i].Dst)
		}
		p.bytesIn.Add(uint64(bytes))
	}
	done(err)
}

// Send sends one message made of the parts, which may be reused when it returns. Messages of one peer arrive in
// order. It does not wait: messages that the peer has not taken are queued (over verbs, long ones in buffers of this
// node), and beyond 128 MiB of them the call fails with ErrNoMemory. It fails with ErrTooLarge above MessageMax.
func (p *Peer) Send(parts ...[]byte) error {
	size := 0
	for _, b := range parts {
		size += len(b)
	}
	if size > MessageMax {
		return fmt.Errorf("%w: message of %d bytes; %d allowed", ErrTooLarge, size, MessageMax)
	}
	if err := p.Err(); err != nil {
		return err
	}

	// The compiler cannot see that a link keeps no parts. Passing a pooled list keeps the caller's list on the
	// caller's stack.
	list := partLists.Get().(*[][]byte)
	*list = append((*list)[:0], parts...)
	err := p.link.sendMessage(*list, size)
	clear(*list)
	partLists.Put(list)

	if err == nil {
		p.sent.Add(1)
	}
	return err
}

var partLists = sync.Pool{New: func() any { return new([][]byte) }}

// Ping asks the peer for a sign of life: done gets nil once the peer has answered, after all earlier requests over
// its byte stream, or the reason of its loss. done is called as in Read; within one process at once.
func (p *Peer) Ping(done func(error)) {
	if err := p.Err(); err != nil {
		done(err)
		return
	}
	p.link.ping(done)
}

// Provider returns the provider that carries reads now: "local", "verbs", "shm" or "tcp".
func (p *Peer) Provider() string { return p.link.name() }

// Addr returns the address that Connect was given, or the source address of an accepted peer.
func (p *Peer) Addr() string { return p.addr }

// Err returns nil while the peer lives, then the reason of its loss.
func (p *Peer) Err() error {
	if e := p.err.Load(); e != nil {
		return *e
	}
	return nil
}

// Close cuts off the peer. Reads in progress end with ErrClosed.
func (p *Peer) Close() { p.cutPeer(fmt.Errorf("%w: peer closed", ErrClosed)) }

func (p *Peer) cutPeer(err error) { p.link.cutLink(err) }

// receive passes a message to the node's owner.
func (p *Peer) receive(msg []byte) {
	p.received.Add(1)
	if f := p.node.cfg.Receive; f != nil {
		f(p, msg)
	} else if f := p.node.receiver.Load(); f != nil {
		(*f)(p, msg)
	}
}

// losePeer ends a peer: nothing comes after it.
func (p *Peer) losePeer(err error) {
	p.once.Do(func() {
		p.err.CompareAndSwap(nil, &err)
		p.node.forgetPeer(p)
		if f := p.node.cfg.Lost; f != nil {
			f(p, err)
		}
		close(p.gone)
	})
}

func (p *Peer) stats(now time.Duration) PeerStats {
	return PeerStats{
		Addr: p.addr, Provider: p.Provider(),
		Echo: p.echoes.readPercentiles(now), Reads: p.chains.readPercentiles(now),
		Chains: p.read.Load(), Failed: p.failed.Load(), BytesIn: p.bytesIn.Load(),
		Sent: p.sent.Load(), Received: p.received.Load(), Network: p.stateAt(),
	}
}
