package rdma

import (
	"net"
	"slices"
	"sync/atomic"

	"downbeat.dev/rdma/stream"
)

// conn is a link over a byte stream: TCP, TLS over TCP, or a Unix socket. One goroutine reads (its loop, or with TLS
// its own) and calls done and Receive. A sender writes its frames, or leaves them to the goroutine that is
// writing. The work is in the parts, each in a file of its own; conn contains the peer's calls and the end of all
// parts.
type conn struct {
	peer   *Peer
	dialer bool // this end connected
	socket socket
	direct atomic.Pointer[direct] // never nil

	out       sender   // frames towards the peer, and the stream's lock
	outbox    outbox   // messages towards the peer
	reads     reads    // of the peer's memory, over the stream
	in        receiver // frames from the peer; it and inbox belong to the reading goroutine
	inbox     inbox    // messages from the peer
	keepalive keepalive
	upgrade   upgrade
}

// newConn makes a peer's link from an authenticated connection: a socket, a Unix one if isUnix is set, or a TLS
// connection.
func newConn(p *Peer, fd int, isUnix bool, tls net.Conn) *conn {
	n := p.node
	c := &conn{peer: p, socket: socket{fd: fd, tls: tls}}
	c.outbox.conn, c.inbox.conn, c.reads.conn, c.in.conn, c.keepalive.conn = c, c, c, c, c
	c.upgrade = upgrade{conn: c, answer: make(chan error, 1)}

	c.out.frames = stream.NewWriter(stream.Options{Mu: &c.out.mu, FD: fd, TLS: tls, Now: &n.turn, Copied: &n.copied,
		Notice: func(write bool) error { return c.socket.loop.noticeWritable(c, write) }})
	c.reads.chains = stream.NewChains(&c.out.mu, p.finishChain)
	c.in.frames = stream.NewReader(fd, isUnix, c.reads.chains, &c.in, &n.turn, n.now())

	c.useDirect(streamOnly{})
	if isUnix {
		c.useDirect(newShmReader(c))
	}
	p.link = c
	return c
}

// useDirect makes reads go over d.
func (c *conn) useDirect(d direct) { c.direct.Store(&d) }

func (c *conn) name() string { return (*c.direct.Load()).name() }

// postReads posts a chain, directly if possible.
func (c *conn) postReads(r stream.Request) {
	// Lent bytes lie in no segment, and a chain is read in one way: one with lent bytes goes over the stream.
	lent := slices.ContainsFunc(r.Reads, func(one Read) bool { return one.Src.Lent() })
	if lent || !(*c.direct.Load()).readDirect(r) {
		c.reads.requestChain(r)
	}
}

func (c *conn) ping(done func(error)) { c.reads.ping(done) }

func (c *conn) giveUp() { c.reads.giveUp() }

func (c *conn) sendMessage(parts [][]byte, size int) error { return c.outbox.sendMessage(parts, size) }

func (c *conn) detach(b *Buffer) { c.out.detach(b) }

func (c *conn) owed() int { return c.out.owed() }

// cutLink ends the connection for err: its reader sees the end of the stream and drops it.
func (c *conn) cutLink(err error) { c.out.failWith(err) }

// dropLink ends all parts of the connection. Only its reader calls it, as its last act.
func (c *conn) dropLink(err error) {
	c.out.mu.Lock()
	c.out.frames.End(err)
	err = c.out.frames.Err()
	d := *c.direct.Swap(ended)
	c.outbox.releaseStaged()
	left := c.reads.chains.Take()
	c.out.mu.Unlock()

	d.closeDirect(err)
	c.in.frames.CloseFiles()

	// Callbacks of ended chains must see that the peer is lost, or they would keep using it.
	c.peer.err.CompareAndSwap(nil, &err)
	for _, chain := range left {
		c.reads.chains.Abandon(chain, err)
	}
	c.inbox.releaseHeld()
	c.peer.losePeer(err)
}

// ended is the direct of a conn that was dropped.
var ended = func() *direct { d := direct(streamOnly{}); return &d }()

// dropped reports whether the reader has dropped the conn. c.out.mu is held.
func (c *conn) dropped() bool { return c.direct.Load() == ended }

// abandon closes a conn that no loop serves yet.
func (c *conn) abandon() {
	c.out.endWith(ErrClosed)
	(*c.direct.Swap(ended)).closeDirect(ErrClosed)
}
