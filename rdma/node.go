package rdma

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Node is one end of the data plane: a pool of registered memory and the connected peers. All its methods may be
// called from any goroutine.
type Node struct {
	cfg      Config
	id       stream.NodeID
	addr     string
	began    time.Time
	pool     *memory.Pool
	copied   atomic.Int64 // copied bytes that wait for slow peers, see detach
	apart    atomic.Int32 // peers in other processes
	loops    []*loop
	next     atomic.Uint32 // loop for the next peer
	turn     atomic.Int64  // node time when some loop last began a turn: up to tickEvery old, but cheap to read
	tcp      net.Listener
	unix     net.Listener // nil without shm
	verbs    device       // nil without verbs; set by Open
	noVerbs  error        // the reason
	announce atomic.Bool  // long messages to peers over verbs are announced; set by Open
	callers  sync.Mutex   // see enterCallbacks
	receiver atomic.Pointer[func(*Peer, []byte)]
	wait     sync.WaitGroup
	ctx      context.Context // ends with Close
	end      context.CancelFunc

	watched   []*Peer   // of cutHoarders; owned by the first loop
	greetings greetings // handshakes in progress on the accepting side

	mu       sync.Mutex // guards the fields below
	closed   bool
	peers    map[*Peer]struct{}
	resent   uint64           // segments retransmitted to peers that have gone
	reserved int              // places of peers that were accepted and are not among peers yet
	dials    map[string]*dial // by address, while the peer lives or is being dialled
}

// Open starts a node. The caller must Close it.
func Open(c Config) (*Node, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}

	n := &Node{cfg: c, began: time.Now(), peers: map[*Peer]struct{}{}, dials: map[string]*dial{}}
	n.pool = memory.NewPool(memory.Options{Bytes: c.PoolBytes, Now: n.now, Detach: n.detach, Log: c.Logger})
	rand.Read(n.id[:])
	n.ctx, n.end = context.WithCancel(context.Background())

	if err := n.listen(); err != nil {
		n.Close()
		return nil, err
	}
	if err := n.startVerbs(); err != nil {
		n.Close()
		return nil, err
	}

	for range n.loopsFor() {
		l, err := newLoop(n)
		if err != nil {
			n.Close()
			return nil, err
		}
		n.loops = append(n.loops, l)
	}

	// Peers may connect from here on: everything that serves them exists.
	n.wait.Add(1)
	go n.acceptPeers(n.tcp)
	if n.unix != nil {
		n.wait.Add(1)
		go n.acceptPeers(n.unix)
	}

	// From here on nodes of this process join without a socket.
	nodes.Lock()
	if nodes.byID == nil {
		nodes.byID = map[stream.NodeID]*Node{}
	}
	nodes.byID[n.id] = n
	nodes.Unlock()
	return n, nil
}

// now is the node's clock: monotonic, never 0.
func (n *Node) now() time.Duration { return time.Since(n.began) + 1 }

// ReceiveWith sets the receiver of messages if Config.Receive is nil, for an owner made after the node. Earlier
// messages are lost.
func (n *Node) ReceiveWith(f func(from *Peer, msg []byte)) { n.receiver.Store(&f) }

// Addr returns the node's address for a peer's Connect. It is opaque.
func (n *Node) Addr() string { return n.addr }

// Alloc returns a buffer of size bytes from a size-classed pool, or ErrNoMemory, or ErrTooLarge
// over BufferMax. Its content is undefined. It allocates nothing after warm-up.
func (n *Node) Alloc(size int) (*Buffer, error) { return n.pool.Alloc(size) }

// Lend returns a buffer over bytes that the node does not own, such as another process's shared memory mapped here.
// Peers read them in place; a read of memory that has gone is refused. They must stay mapped until the buffer has
// been withdrawn and freed. ok is false if a copy in a Buffer of Alloc is better: a peer in another process would be
// sent a copy for each read.
func (n *Node) Lend(lent []byte) (b *Buffer, ok bool) {
	if n.apart.Load() > 0 {
		return nil, false
	}
	b, err := n.pool.Lend(lent)
	return b, err == nil
}

// Stats returns counts and delays. It is not for the hot path.
func (n *Node) Stats() Stats {
	p := n.pool.Stats()
	s := Stats{BuffersLive: p.Live, OffersLive: p.Offers, BytesLive: p.LiveBytes, BuffersQuarantined: p.Quarantined,
		BytesRegistered: p.Mapped, BytesMax: p.Bound}

	// The peers are queried without the node's lock, as each has its own.
	n.mu.Lock()
	peers := make([]*Peer, 0, len(n.peers))
	s.Retransmitted = n.resent
	for peer := range n.peers {
		peers = append(peers, peer)
		s.Retransmitted += uint64(peer.network.resent.Load())
	}
	n.mu.Unlock()

	now := n.now()
	for _, peer := range peers {
		s.Peers = append(s.Peers, peer.stats(now))
	}
	slices.SortFunc(s.Peers, func(a, b PeerStats) int { return compareText(a.Addr, b.Addr) })
	return s
}

// startVerbs opens the device, if there is one and verbs are allowed. If only verbs are allowed, a missing device is
// an error.
func (n *Node) startVerbs() error {
	n.noVerbs = fmt.Errorf("%w: not among Config.Providers, or TLS is on", ErrNotSupported)

	if !n.allowsProvider("verbs") {
		return nil
	}
	n.verbs, n.noVerbs = openVerbs(n)
	if n.noVerbs == nil {
		n.announce.Store(true)
		return nil
	}

	n.verbs = nil
	n.cfg.Logger.Info("no verbs", "why", n.noVerbs)

	if len(n.cfg.Providers) == 1 {
		return n.noVerbs
	}
	return nil
}

// enterCallbacks is called before code that may call done, Receive or Lost, and leaveCallbacks after it. With TLS and
// verbs together two goroutines do so for one peer, its stream's reader and the loop: then one waits for the other.
// Otherwise nobody waits.
func (n *Node) enterCallbacks() {
	if n.verbs != nil && n.cfg.TLS != nil {
		n.callers.Lock()
	}
}

func (n *Node) leaveCallbacks() {
	if n.verbs != nil && n.cfg.TLS != nil {
		n.callers.Unlock()
	}
}

// spawn runs f beside the loops, unless the node is closing; Close waits for it.
func (n *Node) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wait.Add(1)
	go func() {
		defer n.wait.Done()
		f()
	}()
	return true
}

// Close cuts off all peers, waits for the node's goroutines and unmaps its memory: no Buffer may be touched after it.
// Reads in progress end with ErrClosed. Buffers that were not freed are an error, and their memory stays mapped.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	n.closed = true
	peers := make([]*Peer, 0, len(n.peers))
	for p := range n.peers {
		peers = append(peers, p)
	}
	n.mu.Unlock()

	// Nodes of this process no longer find this one. Then no peer is accepted any more, and then the present ones are
	// cut off.
	nodes.Lock()
	delete(nodes.byID, n.id)
	nodes.Unlock()

	n.end()
	for _, ln := range []net.Listener{n.tcp, n.unix} {
		if ln != nil {
			ln.Close()
		}
	}
	n.wait.Wait()

	// A peer is gone when its last callback has returned: only then may the memory that it read into be unmapped.
	for _, p := range peers {
		p.cutPeer(fmt.Errorf("%w: node closed", ErrClosed))
		<-p.gone
	}

	for _, l := range n.loops {
		l.closeLoop()
	}
	if n.verbs != nil {
		n.verbs.closeDevice()
	}
	return n.pool.Close(n.cfg.Stall)
}
