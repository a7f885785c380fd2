// Package rdma is the data plane: memory registered once in pools, one-sided reads of what a peer
// offered, and messages for outputs. Providers: verbs (tag rdma), shared memory on one host, TCP
// everywhere. It knows nothing of models or scheduling.
package rdma

import "errors"

// Errors that a read or a send can end in. Details are wrapped around them.
var (
	ErrNotSupported = errors.New("rdma: not supported on this host")
	ErrClosed       = errors.New("rdma: closed")
	ErrPeerLost     = errors.New("rdma: peer lost")
	ErrNotOffered   = errors.New("rdma: read of memory that was not offered") // stale key, out of range
	ErrTooLarge     = errors.New("rdma: larger than the limit")
	ErrNoMemory     = errors.New("rdma: registered memory exhausted")
	ErrVersion      = errors.New("rdma: peer speaks another version")
	ErrAuth         = errors.New("rdma: wrong token")
)

// Remote says where offered bytes lie in a peer's registered memory; it travels in wire.Descriptor.
type Remote struct {
	Key    uint64
	Offset uint64
	Length uint32
}

// Read is one one-sided read of a chain. len(Dst) must equal Src.Length, and Dst must lie in a
// Buffer of the local node (providers may need it registered).
type Read struct {
	Dst []byte
	Src Remote
}

// The rest of the package's surface, to be written:
//
//	type Config struct {
//		Listen    string   // "127.0.0.1:0"; loopback unless told
//		Token     string   // both ends must hold the same
//		Providers []string // order of preference; empty: verbs, shm, tcp as the host offers
//		TLS       *tls.Config
//		PoolBytes int64    // bound of registered memory
//		PeersMax  int
//		Receive   func(from *Peer, msg []byte) // a message from a peer; valid during the call; one goroutine per peer
//		Logger    *slog.Logger
//	}
//	func Open(c Config) (*Node, error)
//	func (n *Node) Addr() string                        // opaque; what Connect of a peer takes
//	func (n *Node) Alloc(size int) (*Buffer, error)     // from size-classed registered pools; no allocation after warm-up
//	func (n *Node) Connect(ctx context.Context, addr string) (*Peer, error) // cached per address; picks the best common provider
//	func (n *Node) Stats() Stats                        // buffers live, bytes, per-peer delays (p50/p99/p99.9 of control echo and of reads)
//	func (n *Node) Close() error
//
//	func (b *Buffer) Bytes() []byte
//	func (b *Buffer) Offer() Remote    // readable by peers from now on, until Withdraw or Free
//	func (b *Buffer) Withdraw()        // a read after this fails with ErrNotOffered; returns when none is under way
//	func (b *Buffer) Free()
//
//	func (p *Peer) Read(chain []Read, done func(error)) // one-sided, one posted chain; done is called exactly once
//	func (p *Peer) Send(parts ...[]byte) error          // one message made of the parts; copied or written before return; ErrTooLarge over MessageMax
//	func (p *Peer) Provider() string
