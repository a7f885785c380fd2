package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// input is the reading side's state: bytes are taken in by feed, or land where want says and are
// accounted by got. It belongs to the conn's reader.
type input struct {
	rest       []byte                 // a frame that has not come in whole: at most header and small body
	msg        []byte                 // a long message being collected
	left       int                    // bytes of it that are still to come
	number     uint64                 // of msg
	next       uint64                 // number of the message to hand on next
	held       map[uint64]heldMessage // came early, by another way than those before
	heldBytes  int
	fetches    []*fetch // announced messages on their way here
	fetchFree  []*fetch
	fetchBytes int
	op         *op // the chain being filled
	fill       []gap
	err        *ChainError

	iov   [iovMax]unix.Iovec
	hdr   unix.Msghdr
	oob   [64]byte
	files []int // descriptors that came and were not claimed yet
}

// gap is what is still to come of read i of the chain being filled.
type gap struct {
	b []byte
	i int
}

const (
	messageKept = 1 << 20 // capacity kept for the next long message
	messageStep = 64 << 10
	filesMax    = 4
)

// feed takes in bytes of the stream that follow what came before. b is not kept.
func (c *conn) feed(b []byte) error {
	in := &c.in
	for len(b) > 0 {
		switch {
		case in.left > 0:
			n := copy(in.tail(len(b)), b)
			if err := c.got(n); err != nil {
				return err
			}
			b = b[n:]
			continue
		case len(in.fill) > 0:
			n := copy(in.fill[0].b, b)
			c.got(n)
			b = b[n:]
			continue
		}
		n, err := c.frame(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// frame takes one frame, or the piece of it that came, from b and returns the bytes used.
func (c *conn) frame(b []byte) (int, error) {
	in := &c.in
	used := 0
	whole := b
	if len(in.rest) > 0 || len(b) < headerBytes {
		used = min(len(b), max(0, headerBytes-len(in.rest)))
		in.rest = append(in.rest, b[:used]...)
		if len(in.rest) < headerBytes {
			return used, nil
		}
		whole = in.rest
	}
	f, err := parseFrame(whole)
	if err != nil {
		return 0, err
	}
	if f.kind == frameMessage {
		return c.takeMessage(f, b, used)
	}
	need := headerBytes + int(f.body)
	if f.kind == frameData {
		need = headerBytes + int(f.count)
	}
	if len(in.rest) > 0 {
		more := min(len(b)-used, need-len(in.rest))
		in.rest = append(in.rest, b[used:used+more]...)
		used += more
		whole = in.rest
	}
	if len(whole) < need {
		if len(in.rest) == 0 {
			in.rest = append(in.rest, b...)
			used = len(b)
		}
		return used, nil
	}
	if len(in.rest) == 0 {
		used = need
	}
	err = c.dispatch(f, whole[headerBytes:need])
	in.rest = in.rest[:0]
	return used, err
}

// takeMessage hands a whole message on in place, or begins to collect a long one.
func (c *conn) takeMessage(f frame, b []byte, used int) (int, error) {
	in := &c.in
	if len(in.rest) == 0 {
		used = headerBytes
	}
	in.rest = in.rest[:0]
	if have := b[used:]; len(have) >= int(f.body) {
		return used + int(f.body), c.deliver(f.id, have[:f.body])
	}
	in.left, in.number = int(f.body), f.id
	in.msg = in.msg[:0]
	n := copy(in.tail(len(b)-used), b[used:])
	return used + n, c.got(n)
}

// heldMessage is a message that is here. One that was fetched has memory of its own, in buffer if
// that is not nil.
type heldMessage struct {
	number  uint64
	bytes   []byte
	fetched bool
	buffer  *Buffer
}

func (m heldMessage) free() {
	if m.buffer != nil {
		m.buffer.Free()
	}
}

// release gives back the messages that nobody will get any more.
func (in *input) release() {
	for _, m := range in.held {
		m.free()
	}
	in.held, in.heldBytes = nil, 0
}

// deliver hands messages on in the order of their numbers. A message that comes early is kept: over
// verbs, long ones take another way than short ones. One that comes again is dropped.
func (c *conn) deliver(number uint64, msg []byte) error {
	if number&announced != 0 {
		return c.fetch(number&^announced, msg)
	}
	return c.inTurn(heldMessage{number: number, bytes: msg})
}

// inTurn hands on a message that is here, or keeps it until those before it are.
func (c *conn) inTurn(m heldMessage) error {
	in := &c.in
	if m.number > in.next {
		if !c.peer.node.announce.Load() || in.heldBytes+len(m.bytes) > heldMax || len(in.held) > announcedMax {
			m.free()
			return fmt.Errorf("%w: message %d, expected %d", ErrProtocol, m.number, in.next)
		}
		if in.held == nil {
			in.held = map[uint64]heldMessage{}
		}
		if _, twice := in.held[m.number]; twice {
			m.free()
			return nil
		}
		if !m.fetched {
			m.bytes = bytes.Clone(m.bytes)
		}
		in.held[m.number] = m
		in.heldBytes += len(m.bytes)
		return nil
	}
	if m.number < in.next {
		m.free()
		return nil
	}
	c.called()
	for {
		in.next++
		c.peer.receive(m.bytes)
		m.free()
		if m.fetched {
			c.control(frame{kind: frameTaken, id: m.number})
		}
		early, ok := in.held[in.next]
		if !ok {
			return nil
		}
		delete(in.held, in.next)
		in.heldBytes -= len(early.bytes)
		m = early
	}
}

// tail is where the next bytes of a long message go. Memory grows with what has come, not with
// what the peer announced.
func (in *input) tail(atLeast int) []byte {
	n := min(in.left, max(atLeast, messageStep, len(in.msg)))
	if cap(in.msg)-len(in.msg) < min(in.left, max(atLeast, 1)) {
		grown := make([]byte, len(in.msg), len(in.msg)+n)
		copy(grown, in.msg)
		in.msg = grown
	}
	free := in.msg[len(in.msg):cap(in.msg)]
	return free[:min(len(free), in.left)]
}

// dispatch acts on a frame other than a message. body is valid during the call.
func (c *conn) dispatch(f frame, body []byte) error {
	switch f.kind {
	case frameRead:
		return c.serve(f, body)
	case frameData:
		return c.beginData(f, body)
	case frameEcho:
		f.kind = frameEchoed
		c.control(f)
	case frameEchoed:
		if f.id == 0 || !c.echoSent.CompareAndSwap(int64(f.id), 0) {
			return fmt.Errorf("%w: answer to no echo", ErrProtocol)
		}
		now := c.peer.node.now()
		c.peer.echoes.add(now, now-time.Duration(f.id))
	case frameSegment:
		return c.grant(f.id)
	case frameGranted:
		return c.granted(body)
	case frameVerbs:
		return c.setUp(body)
	case frameTaken:
		return c.taken(f.id)
	default:
		return fmt.Errorf("%w: frame kind %d not expected here", ErrProtocol, f.kind)
	}
	return nil
}

// beginData matches a data frame with the oldest chain and lays out where its bytes go.
func (c *conn) beginData(f frame, statuses []byte) error {
	o := c.oldest()
	if o == nil || o.id != f.id || len(o.chain) != int(f.count) {
		return fmt.Errorf("%w: data that was not asked for", ErrProtocol)
	}
	in := &c.in
	in.op, in.fill, in.err = o, in.fill[:0], nil
	want := uint64(f.count)
	for i, s := range statuses {
		if s == statusOK {
			want += uint64(len(o.chain[i].Dst))
			if len(o.chain[i].Dst) > 0 {
				in.fill = append(in.fill, gap{o.chain[i].Dst, i})
			}
			continue
		}
		if in.err == nil {
			in.err = &ChainError{Err: ErrNotOffered}
		}
		in.err.Failed = append(in.err.Failed, i)
	}
	if uint64(f.body) != want {
		in.op, in.fill = nil, in.fill[:0]
		return fmt.Errorf("%w: data of %d bytes for a chain of %d", ErrProtocol, f.body, want)
	}
	c.filled()
	return nil
}

// filled completes the chain if all its bytes are there.
func (c *conn) filled() {
	in := &c.in
	if len(in.fill) > 0 {
		return
	}
	o, failed := in.op, in.err
	in.op, in.err = nil, nil
	if failed != nil {
		c.complete(o, failed)
	} else {
		c.complete(o, nil)
	}
}

// got accounts n bytes that landed where want said.
func (c *conn) got(n int) error {
	in := &c.in
	if in.left > 0 {
		in.msg = in.msg[:len(in.msg)+n]
		if in.left -= n; in.left == 0 {
			err := c.deliver(in.number, in.msg)
			if cap(in.msg) > messageKept {
				in.msg = nil
			}
			return err
		}
		return nil
	}
	drop := 0
	for n > 0 && drop < len(in.fill) {
		g := &in.fill[drop]
		k := min(n, len(g.b))
		g.b = g.b[k:]
		n -= k
		if len(g.b) == 0 {
			if in.op.each != nil {
				c.called()
				tell(in.op.each, in.op.chain, g.i)
			}
			drop++
		}
	}
	if drop > 0 {
		in.fill = in.fill[:copy(in.fill, in.fill[drop:])]
		c.filled()
	}
	return nil
}

// want prepares iov for bytes whose place is known and returns the number of pieces, 0 when the
// next bytes are frames.
func (in *input) want() int {
	if in.left > 0 {
		b := in.tail(1)
		in.iov[0] = unix.Iovec{Base: &b[0]}
		in.iov[0].SetLen(len(b))
		return 1
	}
	n := min(len(in.fill), iovMax)
	for i := range n {
		in.iov[i] = unix.Iovec{Base: &in.fill[i].b[0]}
		in.iov[i].SetLen(len(in.fill[i].b))
	}
	return n
}

// buffered is how many bytes of frames may be read at once: while a long data frame is due, no more
// than its head, so that its bytes need not be copied out of the frame buffer.
func (c *conn) buffered(all int) int {
	if c.pending.Load() == 0 {
		return all
	}
	o := c.oldest()
	if o == nil || o.bytes <= copyMax {
		return all
	}
	return max(1, min(all, headerBytes+len(o.chain)-len(c.in.rest)))
}

// readable takes in what the socket has, within the loop's bound for one peer's turn.
func (c *conn) readable(buf []byte) error {
	c.mu.Lock()
	c.corked = true
	c.mu.Unlock()
	err := c.takeIn(buf)
	c.mu.Lock()
	c.corked = false
	c.flush()
	if err == nil {
		err = c.err
	}
	c.mu.Unlock()
	return err
}

const turnBytes = 1 << 20 // taken in from one peer before the loop turns to the next

func (c *conn) takeIn(buf []byte) error {
	in := &c.in
	for taken := 0; taken < turnBytes; {
		runs := in.want()
		var due *op
		head := 0
		if runs == 0 {
			head = c.buffered(len(buf))
			in.iov[0] = unix.Iovec{Base: &buf[0]}
			in.iov[0].SetLen(head)
			runs = 1
			if due = c.due(head); due != nil {
				runs += in.expect(due, len(buf)-head)
			}
		}
		asked := 0
		for i := range runs {
			asked += int(in.iov[i].Len)
		}
		n, errno := c.recv(runs)
		if errno == unix.EAGAIN || errno == unix.EINTR {
			return nil
		}
		if errno != 0 {
			return fmt.Errorf("%w: read: %w", ErrPeerLost, errno)
		}
		if n == 0 {
			return fmt.Errorf("%w: %w", ErrPeerLost, io.EOF)
		}
		taken += n
		c.heard.Store(c.peer.node.turn.Load())
		if err := c.landed(buf, head, n, due); err != nil {
			return err
		}
		if n < asked || c.pending.Load() == 0 && len(in.rest) == 0 && in.left == 0 && n < len(buf) {
			return nil // the socket is empty, most likely; it will be readable again if it is not
		}
	}
	return nil
}

// due returns the chain whose data frame should come next, if a long one is due and begins here, and
// its destinations may be touched by what turns out to be another frame.
func (c *conn) due(head int) *op {
	if c.pending.Load() == 0 || len(c.in.rest) > 0 {
		return nil
	}
	if o := c.oldest(); o != nil && !o.again && o.bytes > copyMax && head == headerBytes+len(o.chain) {
		return o
	}
	return nil
}

// expect adds the chain's destinations behind the frame's head, at most bound bytes: in the common
// case one call reads both, and the bytes lie where they belong.
func (in *input) expect(o *op, bound int) int {
	n := 0
	for i := range o.chain {
		dst := o.chain[i].Dst
		if n+1 == iovMax || len(dst) > bound {
			break
		}
		if len(dst) > 0 {
			n++
			in.iov[n] = unix.Iovec{Base: &dst[0]}
			in.iov[n].SetLen(len(dst))
			bound -= len(dst)
		}
	}
	return n
}

// landed accounts n bytes: head of them in buf, the others where want or expect said. When another
// frame came than was expected, its bytes are taken out of the destinations again.
func (c *conn) landed(buf []byte, head, n int, due *op) error {
	if head == 0 {
		return c.got(n)
	}
	if n <= head {
		return c.feed(buf[:n])
	}
	spilled := n - head
	if f, err := parseFrame(buf); err == nil && f.kind == frameData && f.id == due.id && allOK(buf[headerBytes:head]) {
		if err := c.feed(buf[:head]); err != nil {
			return err
		}
		c.got(spilled)
		return nil
	}
	rest := buf[head:n]
	for i := 0; len(rest) > 0; i++ {
		rest = rest[copy(rest, due.chain[i].Dst):]
	}
	return c.feed(buf[:n])
}

func allOK(statuses []byte) bool {
	for _, s := range statuses {
		if s != statusOK {
			return false
		}
	}
	return true
}

// recv reads into iov[:runs] without waiting, keeping descriptors that come along.
func (c *conn) recv(runs int) (int, unix.Errno) {
	in := &c.in
	if !c.unix {
		n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(c.fd), uintptr(unsafe.Pointer(&in.iov[0])), uintptr(runs))
		return int(n), errno
	}
	in.hdr = unix.Msghdr{Iov: &in.iov[0], Control: &in.oob[0]}
	in.hdr.SetIovlen(runs)
	in.hdr.SetControllen(len(in.oob))
	n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&in.hdr)), unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if errno == 0 && in.hdr.Controllen > 0 {
		if !in.keepFiles(in.oob[:in.hdr.Controllen]) {
			return 0, unix.EPROTO
		}
	}
	return int(n), errno
}

func (in *input) keepFiles(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			in.files = append(in.files, fds...)
		}
	}
	return len(in.files) <= filesMax
}

func (in *input) closeFiles() {
	for _, fd := range in.files {
		unix.Close(fd)
	}
	in.files = nil
}

// granted takes a segment that the peer lets us read directly.
func (c *conn) granted(body []byte) error {
	g, err := parseGranted(body)
	if err != nil {
		return err
	}
	if n := c.peer.node; !c.unix && n.verbs != nil {
		return n.verbs.granted(c, g)
	}
	d, ok := c.shm()
	if !ok || len(c.in.files) == 0 {
		return fmt.Errorf("%w: segment granted that was not asked for, or without its descriptor", ErrProtocol)
	}
	fd := c.in.files[0]
	c.in.files = c.in.files[:copy(c.in.files, c.in.files[1:])]
	defer unix.Close(fd)
	return d.take(fd, g)
}

// readTLS is the reader of a TLS peer: the same state machine over a blocking stream.
func (c *conn) readTLS() {
	buf := make([]byte, 64<<10)
	for {
		var n int
		var err error
		in := &c.in
		if in.want() > 0 {
			n, err = c.tls.Read(unsafe.Slice(in.iov[0].Base, in.iov[0].Len))
			c.peer.node.enter()
			err = errors.Join(err, c.got(n))
		} else {
			n, err = c.tls.Read(buf[:c.buffered(len(buf))])
			c.peer.node.enter()
			err = errors.Join(err, c.feed(buf[:n]))
			c.mu.Lock()
			c.flush()
			c.mu.Unlock()
		}
		c.heard.Store(c.peer.node.turn.Load())
		if err != nil {
			c.loop.remove(c)
			c.drop(fmt.Errorf("%w: read: %w", ErrPeerLost, err))
			c.peer.node.leave()
			return
		}
		c.peer.node.leave()
	}
}

const (
	echoEvery = 250 * time.Millisecond
	tickEvery = 50 * time.Millisecond
)
