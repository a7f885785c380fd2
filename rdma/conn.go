package rdma

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// conn carries frames to and from one peer over a byte stream: TCP, TLS over TCP, or a Unix socket.
// One goroutine reads (its loop, or with TLS its own) and calls done and Receive; whoever has
// something to send writes, or leaves it to the one who is writing.
type conn struct {
	peer   *Peer
	loop   *loop
	slot   int      // in loop.conns
	dialer bool     // this end connected
	fd     int      // -1 with TLS
	tls    net.Conn // nil without TLS
	unix   bool     // descriptors may come along
	kick   chan struct{}

	settingUp atomic.Bool  // an offered queue pair is being made
	upgrades  atomic.Int32 // offers made again
	answer    chan error   // to an offer

	pending atomic.Int32 // len of ops
	direct  atomic.Pointer[directReader]

	mu          sync.Mutex // protects what follows
	err         error      // why it failed
	out         output
	number      uint64          // of the next message
	staged      []stagedMessage // announced and not taken, in the order of their numbers
	sentBytes   uint64          // of messages, without announced ones
	stagedBytes int
	offer       [readBytes]byte // body of an announcement
	parts       [1][]byte       // offer
	writing     bool            // somebody is in a write call without mu
	corked      bool            // the reader is taking in frames and will flush after them
	armed       bool            // the loop waits for the socket to take more
	dropped     bool            // the reader has let go of it
	closed      bool
	wrote       time.Duration // last progress of writing
	ops         []*op         // reads under way, oldest first
	opsHead     int
	opsSeen     uint64
	opsFree     []*op
	reads       int // entries of ops

	in    input        // owned by the reader
	heard atomic.Int64 // last bytes from the peer, node time

	echoSent atomic.Int64  // node time of the echo under way, 0 when none: set by the loop, cleared by the reader
	echoNext time.Duration // owned by the loop
}

// op is one chain under way.
type op struct {
	id    uint64
	bytes int // of the chain
	chain []Read
	each  func(int) // may be nil
	done  func(error)
	start time.Duration
	again bool // it was under way on a queue pair that broke: what each told of stays good in Dst
}

// A directReader serves chains without the peer's help, where it can.
type directReader interface {
	// read serves the chain and calls each and done, or returns false and leaves it to the byte stream.
	read(chain []Read, each func(int), done func(error)) bool
	name() string
	// tick is called by the loop every tickEvery. What has not moved for limit is given up.
	tick(now, limit time.Duration)
	close(err error)
}

func newConn(p *Peer) *conn { return &conn{peer: p, fd: -1, answer: make(chan error, 1)} }

func (c *conn) name() string {
	if d := c.direct.Load(); d != nil {
		return (*d).name()
	}
	return "tcp"
}

// read posts a chain. It came checked.
func (c *conn) read(chain []Read, each func(int), done func(error)) {
	if d := c.direct.Load(); d != nil && (*d).read(chain, each, done) {
		return
	}
	c.readStream(chain, each, done, false)
}

// tell tells of a read that has landed, if it is long enough to be told of.
func tell(each func(int), chain []Read, i int) {
	if each != nil && len(chain[i].Dst) >= EachMin {
		each(i)
	}
}

// readStream asks the peer's loop for the chain's bytes, or does so again after a queue pair broke.
func (c *conn) readStream(chain []Read, each func(int), done func(error), again bool) {
	now := c.peer.node.now()
	c.mu.Lock()
	err := c.err
	if err == nil && (len(c.ops)-c.opsHead >= opsMax || c.reads+len(chain) > servedMax) {
		err = fmt.Errorf("%w: %d chains of %d reads under way to one peer", ErrTooLarge, len(c.ops)-c.opsHead, c.reads)
	}
	if err != nil {
		c.mu.Unlock()
		c.peer.finish(now, chain, err, done)
		return
	}
	o := c.newOp(chain, done, now)
	o.each, o.again = each, again
	b := c.out.reserve(headerBytes + readBytes*len(chain))[:0]
	b = frame{body: uint32(readBytes * len(chain)), kind: frameRead, count: uint16(len(chain)), id: o.id}.append(b)
	for i := range chain {
		b = appendRemote(b, chain[i].Src)
	}
	c.flush()
	c.mu.Unlock()
}

func (c *conn) newOp(chain []Read, done func(error), now time.Duration) *op {
	var o *op
	if k := len(c.opsFree); k > 0 {
		o, c.opsFree = c.opsFree[k-1], c.opsFree[:k-1]
	} else {
		o = &op{}
	}
	c.opsSeen++
	o.id, o.bytes = c.opsSeen, 0
	for i := range chain {
		o.bytes += len(chain[i].Dst)
	}
	o.chain, o.done, o.start = append(o.chain[:0], chain...), done, now
	if c.opsHead > 64 && c.opsHead*2 > len(c.ops) {
		c.ops = c.ops[:copy(c.ops, c.ops[c.opsHead:])]
		c.opsHead = 0
	}
	c.ops = append(c.ops, o)
	c.reads += len(chain)
	c.pending.Add(1)
	return o
}

// oldest returns the chain that the next data frame must answer, or nil.
func (c *conn) oldest() *op {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opsHead == len(c.ops) {
		return nil
	}
	return c.ops[c.opsHead]
}

// complete ends the oldest chain.
func (c *conn) complete(o *op, err error) {
	c.mu.Lock()
	c.ops[c.opsHead] = nil
	c.opsHead++
	if c.opsHead == len(c.ops) {
		c.ops, c.opsHead = c.ops[:0], 0
	}
	c.reads -= len(o.chain)
	c.pending.Add(-1)
	c.mu.Unlock()
	c.called()
	c.peer.finish(o.start, o.chain, err, o.done)
	clear(o.chain)
	o.each, o.done = nil, nil
	c.mu.Lock()
	if len(c.opsFree) < 16 {
		c.opsFree = append(c.opsFree, o)
	}
	c.mu.Unlock()
}

// called notes that the reader is about to call back.
func (c *conn) called() {
	if c.tls == nil && c.loop != nil {
		c.loop.called = true
	}
}

// cut ends the connection for err: its reader sees the end of the stream and drops it.
func (c *conn) cut(err error) {
	c.mu.Lock()
	c.failLocked(err)
	c.mu.Unlock()
}

func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.tls != nil {
		c.tls.Close()
	} else if !c.closed {
		unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// drop ends everything that hangs from the connection. Only its reader calls it, as its last act.
func (c *conn) drop(err error) {
	c.mu.Lock()
	c.failLocked(err)
	err = c.err
	c.dropped = true
	d := c.direct.Swap(nil)
	c.unstage()
	ops := c.ops[c.opsHead:]
	c.ops, c.opsHead, c.reads = nil, 0, 0
	c.pending.Store(0)
	if !c.writing {
		c.release()
	}
	c.mu.Unlock()
	if d != nil {
		(*d).close(err)
	}
	c.in.closeFiles()
	for _, o := range ops {
		c.peer.finish(o.start, o.chain, err, o.done)
	}
	c.in.release()
	c.peer.lose(err)
}

// release gives back what the writer used. c.mu is held, nobody is writing, the reader is gone.
func (c *conn) release() {
	if c.closed {
		return
	}
	c.closed = true
	c.out.discard()
	if c.tls != nil {
		close(c.kick)
		return
	}
	unix.Close(c.fd)
}

// arm asks the loop to say when the socket takes more. c.mu is held.
func (c *conn) arm(on bool) {
	if c.armed == on || c.dropped || c.tls != nil {
		return
	}
	c.armed = on
	if on {
		c.wrote = time.Duration(c.peer.node.turn.Load())
	}
	c.loop.interest(c, on)
}

// serve answers a READ frame: statuses, then the offered bytes, by reference.
func (c *conn) serve(f frame, body []byte) error {
	pool := c.peer.node.pool
	n := int(f.count)
	var total uint64
	for i := range n {
		total += uint64(parseRemote(body[i*readBytes:]).Length)
	}
	if total > chainBytesMax {
		return fmt.Errorf("%w: chain of %d bytes, %d allowed", ErrTooLarge, total, chainBytesMax)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.waiting()+n > servedMax {
		return fmt.Errorf("%w: more than %d reads asked and not taken", ErrTooLarge, servedMax)
	}
	head := c.out.reserve(headerBytes + n)
	sent := uint32(n)
	for i := range n {
		r := parseRemote(body[i*readBytes:])
		b := pool.find(r)
		if b == nil {
			head[headerBytes+i] = statusNotOffered
			continue
		}
		head[headerBytes+i] = statusOK
		sent += r.Length
		c.out.refer(b.mem[r.Offset:r.Offset+uint64(r.Length)], b)
	}
	frame{body: sent, kind: frameData, count: f.count, id: f.id}.append(head[:0])
	return nil
}

const (
	statusOK = iota
	statusNotOffered
)

// grant answers a frameSegment: the owner of a live key of a segment may read it directly, if the
// link can carry that. Otherwise there is no answer, and the peer goes on by the byte stream.
func (c *conn) grant(key uint64) error {
	n := c.peer.node
	s := n.pool.segment(key, !c.unix && n.verbs != nil)
	switch {
	case s == nil:
		return nil
	case c.unix:
		c.sendGrant(s, key, 0, 0)
	case n.verbs != nil:
		if err := n.verbs.grant(c, s, key); err != nil {
			n.cfg.Logger.Info("segment not granted", "peer", c.peer.addr, "err", err)
		}
	}
	return nil
}

// sendGrant queues a grant; over a Unix socket the segment's descriptor goes with it.
func (c *conn) sendGrant(s *segment, key uint64, rkey uint32, base uint64) {
	g := layoutOf(s)
	g.rkey, g.base = rkey, base
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if c.out.waiting() > servedMax {
		c.failLocked(fmt.Errorf("%w: more than %d answers not taken", ErrTooLarge, servedMax))
		return
	}
	seg := outSeg{b: g.append(make([]byte, 0, headerBytes+grantedBytes), key)}
	if c.unix {
		seg.file = s
	}
	c.out.segs = append(c.out.segs, seg)
	c.out.bytes += len(seg.b)
	c.flush()
}

// control sends a frame without a body.
func (c *conn) control(f frame) {
	c.mu.Lock()
	if c.out.bytes > queueMax {
		c.failLocked(fmt.Errorf("%w: %d bytes wait for the peer", ErrTooLarge, c.out.bytes))
	}
	if c.err == nil {
		f.append(c.out.reserve(headerBytes)[:0])
		c.flush()
	}
	c.mu.Unlock()
}

// tick is called by the loop every tickEvery: echoes, and cuts a peer that makes no progress.
func (c *conn) tick(now time.Duration) {
	limit := c.peer.node.cfg.Stall
	heard := time.Duration(c.heard.Load())
	c.mu.Lock()
	waiting := time.Duration(c.echoSent.Load())
	if c.opsHead < len(c.ops) && (waiting == 0 || c.ops[c.opsHead].start < waiting) {
		waiting = c.ops[c.opsHead].start
	}
	stuck := c.stalled(now, limit)
	c.mu.Unlock()
	if d := c.direct.Load(); d != nil {
		(*d).tick(now, limit/2)
	}
	if stuck || waiting != 0 && now-max(waiting, heard) > limit {
		c.cut(fmt.Errorf("%w: no progress for %v", ErrPeerLost, limit))
		return
	}
	if now >= c.echoNext && c.echoSent.CompareAndSwap(0, int64(now)) {
		c.echoNext = now + echoEvery
		c.control(frame{kind: frameEcho, id: uint64(now)})
	}
}
