package rdma

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/stream"
)

// conn is a link over a byte stream: TCP, TLS over TCP, or a Unix socket. One goroutine reads (its loop, or with TLS its
// own) and calls done and Receive; whoever has something to send writes, or leaves it to the one who is writing.
type conn struct {
	peer   *Peer
	loop   *loop
	slot   int      // in loop.conns
	dialer bool     // this end connected
	fd     int      // -1 with TLS
	tls    net.Conn // nil without TLS

	direct   atomic.Pointer[direct] // never nil
	echo     echo
	overTCP  bool          // TLS, too: there is a kernel to ask
	tailed   time.Duration // the loop's: when the bound of round trips was last taken
	upgrade  upgrade
	givingUp atomic.Bool // Peer.GiveUp was called

	mu     sync.Mutex // the stream's: protects out, chains and outbox
	out    *stream.Writer
	chains *stream.Chains
	outbox outbox

	in    *stream.Reader // owned by the reading goroutine, and inbox with it
	inbox inbox
}

// newConn makes a peer's link of a connection whose ends have proved themselves: of a socket, a Unix one if isUnix is
// set, or of a TLS connection.
func newConn(p *Peer, fd int, isUnix bool, tls net.Conn) *conn {
	n := p.node
	c := &conn{peer: p, fd: fd, tls: tls, upgrade: upgrade{answer: make(chan error, 1)}}
	c.inbox.conn, c.outbox.conn = c, c
	c.out = stream.NewWriter(stream.Options{Mu: &c.mu, FD: fd, TLS: tls, Now: &n.turn, Copied: &n.copied,
		Notice: func(write bool) error { return c.loop.notice(c, write) }})
	c.chains = stream.NewChains(&c.mu, p.finishChain)
	c.in = stream.NewReader(fd, isUnix, c.chains, c, &n.turn, n.now())

	c.use(streamOnly{})
	if isUnix {
		c.use(newShmReader(c))
	}
	p.link = c
	return c
}

// use lets reads go over d.
func (c *conn) use(d direct) { c.direct.Store(&d) }

func (c *conn) name() string { return (*c.direct.Load()).name() }

// postReads posts a chain: directly where that is possible.
func (c *conn) postReads(r stream.Request) {
	if !(*c.direct.Load()).readDirect(r) {
		c.readStream(r)
	}
}

// readStream asks the peer's loop for the chain's bytes.
func (c *conn) readStream(r stream.Request) {
	now := c.peer.node.now()
	c.mu.Lock()

	err := c.out.Err()
	if err == nil {
		err = c.chains.Ask(c.out, now, r)
	}
	c.mu.Unlock()

	if err != nil {
		c.peer.finishChain(now, r.Reads, err, r.Done)
	}
}

// Calling notes that the reader is about to call back.
func (c *conn) Calling() {
	if c.tls == nil && c.loop != nil {
		c.loop.called = true
	}
}

// cutLink ends the connection for err: its reader sees the end of the stream and drops it.
func (c *conn) cutLink(err error) {
	c.mu.Lock()
	c.out.Fail(err)
	c.mu.Unlock()
}

// detach replaces queued bytes of b by a copy, or cuts the peer if too much has been copied already.
func (c *conn) detach(b *Buffer) {
	c.mu.Lock()
	c.out.Detach(b, copiedMax)
	c.mu.Unlock()
}

// owed is how many bytes of copies wait for the peer, 0 once it has been cut.
func (c *conn) owed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.Err() != nil {
		return 0
	}
	return c.out.Owned()
}

// dropLink ends everything that hangs from the connection. Only its reader calls it, as its last act.
func (c *conn) dropLink(err error) {
	c.mu.Lock()
	c.out.End(err)
	err = c.out.Err()
	d := *c.direct.Swap(ended)
	c.outbox.releaseStaged()
	left := c.chains.Take()
	c.mu.Unlock()

	d.closeDirect(err)
	c.in.CloseFiles()

	// Whoever hears of a chain's end must see that the peer is lost, or it goes on using it.
	c.peer.err.CompareAndSwap(nil, &err)
	for _, chain := range left {
		c.chains.Abandon(chain, err)
	}
	c.inbox.releaseHeld()
	c.peer.lose(err)
}

// ended is the direct of a conn that was dropped.
var ended = func() *direct { d := direct(streamOnly{}); return &d }()

// dropped tells whether the reader has let go of the conn. c.mu is held.
func (c *conn) dropped() bool { return c.direct.Load() == ended }

// abandon closes a conn that no loop serves yet.
func (c *conn) abandon() {
	c.mu.Lock()
	c.out.End(ErrClosed)
	c.mu.Unlock()
	(*c.direct.Swap(ended)).closeDirect(ErrClosed)
}

// control sends a frame without a body.
func (c *conn) control(f stream.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()

	// A peer that asks and does not read would have its answers pile up here without end.
	if waiting := c.out.Bytes(); waiting > stream.QueueMax {
		c.out.Fail(fmt.Errorf("%w: %d bytes wait for the peer", ErrTooLarge, waiting))
	}
	if c.out.Err() == nil {
		c.out.Copy(f)
		c.out.Flush()
	}
}

// tick is called by the loop every tickEvery: it echoes, and cuts a peer that makes no progress. Time before back,
// when the loop was away itself, is not held against the peer.
func (c *conn) tick(now, back time.Duration) {
	limit := c.peer.node.cfg.Stall
	heard := c.in.Heard()

	// A peer owes an answer to an echo and to the oldest chain; it is silent if nothing came since either was asked.
	c.mu.Lock()
	waiting := c.echo.sentAt()
	if oldest := c.chains.Oldest(); oldest != 0 && (waiting == 0 || oldest < waiting) {
		waiting = oldest
	}
	stuck := now-back > limit && c.out.Stalled(now, limit)
	c.mu.Unlock()

	// Reads with a limit end before the peer is judged: to give them up may be all that is needed.
	c.giveUpOverdue(now)
	(*c.direct.Load()).tick(now, limit/2)

	if stuck || waiting != 0 && now-max(waiting, heard, back) > limit {
		c.cutLink(fmt.Errorf("%w: no progress for %v", ErrPeerLost, limit))
		return
	}

	c.lookAtNetwork(now, waiting != 0)
	if c.echo.isDue(now) {
		c.control(stream.Frame{Kind: stream.KindEcho, ID: uint64(now)})
	}
}

// readable takes in what the socket has, within the bound for one peer's turn. What that makes this end say leaves
// together, at the end.
func (c *conn) readable(buf []byte) error {
	c.mu.Lock()
	c.out.Cork()
	c.mu.Unlock()

	err := c.in.TakeIn(buf)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Uncork()
	if err != nil {
		return err
	}
	return c.out.Err()
}

// readTLS is the reader of a TLS peer, a goroutine of its own.
func (c *conn) readTLS() {
	n := c.peer.node
	buf := make([]byte, tlsBuffer)
	for {
		if err := c.in.ReadTLS(c.tls, buf, n.enterCallbacks); err != nil {
			c.loop.removeConn(c)
			c.dropLink(fmt.Errorf("%w: read: %w", ErrPeerLost, err))
			n.leaveCallbacks()
			return
		}

		c.mu.Lock()
		c.out.Flush()
		c.mu.Unlock()
		n.leaveCallbacks()
	}
}

const tlsBuffer = 64 << 10
