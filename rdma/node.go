package rdma

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"
)

// Limits that a peer cannot make us pass.
const (
	ChainMax   = 1024     // reads of one chain
	MessageMax = 64 << 20 // bytes of one message
	BufferMax  = 64 << 20 // bytes of one buffer
)

// Config says how a node is opened. The zero value is usable on one host.
type Config struct {
	Listen    string        // "127.0.0.1:0" when empty
	Advertise string        // host or host:port that peers dial; empty: the address listened on
	Token     string        // both ends must hold the same
	Providers []string      // order of preference; empty: verbs, shm, tcp as the host offers
	TLS       *tls.Config   // for TCP; used for accepting and for connecting. Leaves verbs out unless named in Providers
	PoolBytes int64         // bound of registered memory; 1 GiB when 0
	PeersMax  int           // peers at a time; 4096 when 0
	Stall     time.Duration // a peer that makes no progress for so long is cut; 2 s when 0
	// Receive gets a message from a peer. msg is valid during the call; calls for one peer come one
	// after another. It must not block: it runs on the loop that serves this node's reads.
	Receive func(from *Peer, msg []byte)
	// Lost tells that a peer has gone, once per peer, after the last Receive. May be nil.
	Lost   func(p *Peer, err error)
	Logger *slog.Logger
}

// Node is one end of the data plane: a pool of registered memory and the peers that it knows.
// All its methods may be called from any goroutine.
type Node struct{}

// Peer is another node that this one is connected to. All its methods may be called from any
// goroutine.
type Peer struct{}

// Buffer is a piece of registered memory. Its owner is whoever called Alloc, until Free.
type Buffer struct{}

// Stats is what a node counts.
type Stats struct {
	BuffersLive     int64 // allocated and not freed
	OffersLive      int64 // of these, readable by peers
	BytesLive       int64 // of live buffers, by size class
	BytesRegistered int64 // mapped and registered
	BytesMax        int64 // Config.PoolBytes
	Peers           []PeerStats
}

// PeerStats is what a node knows about one peer.
type PeerStats struct {
	Addr     string
	Provider string
	Echo     Delay // control echo: there and back, answered by the peer's loop
	Reads    Delay // a chain: from Peer.Read to done
	Chains   uint64
	Failed   uint64
	BytesIn  uint64
	Sent     uint64 // messages
	Received uint64 // messages
}

// Delay holds percentiles over a sliding window of about 20 s.
type Delay struct {
	Count          uint64
	P50, P99, P999 time.Duration
}

// Availability says whether a provider can be used on this host, and why not.
type Availability struct {
	Name   string
	OK     bool
	Reason string
}

// Open starts a node. The caller must Close it.
func Open(c Config) (*Node, error) { return nil, ErrNotSupported }

// Addr is opaque; it is what Connect of a peer takes.
func (n *Node) Addr() string { return "" }

// Alloc returns a buffer of size bytes from a size-classed pool, or ErrNoMemory, or ErrTooLarge
// over BufferMax. Its content is undefined. It allocates nothing after warm-up.
func (n *Node) Alloc(size int) (*Buffer, error) { return nil, ErrNotSupported }

// Connect returns the peer at addr, over the best provider that both ends have. Peers are cached:
// while one lives, Connect to the same address returns it at once.
func (n *Node) Connect(ctx context.Context, addr string) (*Peer, error) { return nil, ErrNotSupported }

// Stats returns counts and delays. It is not for the hot path.
func (n *Node) Stats() Stats { return Stats{} }

// Close cuts all peers, waits for the node's goroutines and unmaps its memory: no Buffer may be
// touched after it. Every read under way ends with ErrClosed.
func (n *Node) Close() error { return nil }

// Providers says what this host offers, best first, and why not more.
func Providers() []Availability { return nil }

// Bytes is the buffer's memory; len is the size asked for.
func (b *Buffer) Bytes() []byte { return nil }

// Offer makes the buffer readable by peers until Withdraw or Free. A second Offer gives a new key.
func (b *Buffer) Offer() Remote { return Remote{} }

// Withdraw ends the offer: a read that begins after it fails with ErrNotOffered. It returns when
// none is under way (a peer that stalls in one is cut after Config.Stall).
func (b *Buffer) Withdraw() {}

// Free ends the offer and gives the buffer back. It never waits: a buffer that is being read is
// reused only after the read.
func (b *Buffer) Free() {}

// Read reads a chain of offered buffers, one-sided, in one posted request. done is called exactly
// once, maybe before Read returns, and must not block: nil, a *ChainError for the reads that the
// peer refused, or ErrPeerLost, ErrClosed, ErrTooLarge, ErrInvalid for the whole chain. The chain's
// slice may be reused when Read returns, the Dst bytes belong to the peer until done.
func (p *Peer) Read(chain []Read, done func(error)) { done(ErrNotSupported) }

// Send sends one message made of the parts; they may be reused when it returns. Messages of one
// peer arrive in order. It waits, at most Config.Stall, while the peer does not take them.
func (p *Peer) Send(parts ...[]byte) error { return ErrNotSupported }

// Provider names what carries the reads now: "local", "verbs", "shm" or "tcp".
func (p *Peer) Provider() string { return "" }

// Addr is the address that Connect was given, or where an accepted peer came from.
func (p *Peer) Addr() string { return "" }

// Err is nil while the peer lives, then why it was lost.
func (p *Peer) Err() error { return nil }
