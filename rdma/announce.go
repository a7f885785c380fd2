package rdma

import (
	"errors"
	"fmt"
	"slices"
)

// Where there are verbs, a message that is too long for one SEND is announced: its sender lays it into
// a registered buffer, offers that and sends the offer in the message's place. The receiver reads it
// like anything else that is offered (one-sided, and over the byte stream where that is not possible),
// hands it on in its turn and says that it is taken. So long messages need no memory set aside per
// peer, and no peer ever gets the right to write.
const (
	messageDirect = 16<<10 - 8      // bytes that one SEND carries beside its number
	announced     = uint64(1) << 63 // in a message's number: its body is a Remote
	announcedMax  = 1 << 15         // messages sent after one that the peer has not taken
	heldMax       = 2 * queueMax    // bytes of messages that came before their turn: announced, and others
)

// stagedMessage is an announced message that the peer has not taken yet.
type stagedMessage struct {
	number uint64
	buffer *Buffer
	sent   uint64 // conn.sentBytes at its time
}

// fetch is an announced message on its way here. It belongs to the conn's reader.
type fetch struct {
	conn   *conn
	number uint64
	buffer *Buffer // nil where there was no registered memory for it
	chain  [1]Read
	done   func(error) // ended, made once
}

// announces tells whether long messages to the peer are announced. (Tests have them announced
// without verbs.)
func (c *conn) announces() bool {
	n := c.peer.node
	return n.announce.Load() && (n.verbs == nil || c.name() == "verbs")
}

// stage copies a message into a buffer of its own, or returns nil where memory is short.
func (c *conn) stage(parts [][]byte, size int) *Buffer {
	b, err := c.peer.node.pool.alloc(size, false)
	if err != nil {
		return nil
	}
	at := 0
	for _, p := range parts {
		at += copy(b.mem[at:], p)
	}
	return b
}

// announceLocked sends a staged message's offer. c.mu is held. The conn frees b.
func (c *conn) announceLocked(b *Buffer) error {
	if c.stagedBytes+b.size > queueMax && c.stagedBytes > 0 {
		b.Free()
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, c.stagedBytes, queueMax)
	}
	number := c.number
	c.number++
	c.staged = append(c.staged, stagedMessage{number, b, c.sentBytes})
	c.stagedBytes += b.size
	body := appendRemote(c.offer[:0], b.Offer())
	c.parts[0] = body
	if !c.sendDirect(number|announced, c.parts[:], len(body)) {
		frame{body: uint32(len(body)), kind: frameMessage, id: number | announced}.append(c.out.reserve(headerBytes)[:0])
		c.out.copyIn(body)
		c.flush()
	}
	return c.err
}

// crowdedLocked tells whether too much was sent behind an announced message that the peer has not
// taken: it must keep all that until then. c.mu is held.
func (c *conn) crowdedLocked(size int) error {
	if len(c.staged) == 0 {
		return nil
	}
	first := c.staged[0]
	if c.number-first.number < announcedMax && c.sentBytes-first.sent+uint64(size) <= queueMax {
		return nil
	}
	return fmt.Errorf("%w: %d messages of %d bytes wait behind one that the peer has not taken", ErrNoMemory, c.number-first.number, c.sentBytes-first.sent)
}

// taken frees a message that the peer has read.
func (c *conn) taken(number uint64) error {
	c.mu.Lock()
	i := slices.IndexFunc(c.staged, func(s stagedMessage) bool { return s.number == number })
	var b *Buffer
	if i >= 0 {
		b = c.staged[i].buffer
		c.stagedBytes -= b.size
		c.staged = slices.Delete(c.staged, i, i+1)
	}
	c.mu.Unlock()
	if b == nil {
		return fmt.Errorf("%w: message %d taken that was not announced", ErrProtocol, number)
	}
	b.freeAnswered()
	return nil
}

// fetch begins to read an announced message. Only the conn's reader calls it.
func (c *conn) fetch(number uint64, body []byte) error {
	in := &c.in
	if !c.peer.node.announce.Load() || len(body) != readBytes {
		return fmt.Errorf("%w: message %d announced in %d bytes", ErrProtocol, number, len(body))
	}
	if number < in.next || in.expects(number) {
		return nil // it was announced twice, by two ways
	}
	r := parseRemote(body)
	size := int(r.Length)
	if size == 0 || size > MessageMax || in.fetchBytes+size > queueMax || len(in.fetches) >= opsMax {
		return fmt.Errorf("%w: message of %d bytes announced; %d messages of %d bytes are on their way", ErrProtocol, size, len(in.fetches), in.fetchBytes)
	}
	var f *fetch
	if k := len(in.fetchFree); k > 0 {
		f, in.fetchFree = in.fetchFree[k-1], in.fetchFree[:k-1]
	} else {
		f = &fetch{conn: c}
		f.done = f.ended
	}
	f.number = number
	b, err := c.peer.node.pool.alloc(size, false)
	if err == nil {
		f.buffer = b
		f.chain[0] = Read{b.Bytes(), r}
	} else { // reads into other memory go over the byte stream
		f.chain[0] = Read{make([]byte, size), r}
	}
	in.fetches = append(in.fetches, f)
	in.fetchBytes += size
	c.read(f.chain[:], nil, f.done)
	return nil
}

// expects tells whether a message is on its way here, or waits for its turn.
func (in *input) expects(number uint64) bool {
	_, early := in.held[number]
	return early || slices.ContainsFunc(in.fetches, func(f *fetch) bool { return f.number == number })
}

// ended hands a message on that has been read. The conn's reader calls it.
func (f *fetch) ended(err error) {
	c, in := f.conn, &f.conn.in
	b, msg := f.buffer, f.chain[0].Dst
	in.fetches = slices.DeleteFunc(in.fetches, func(g *fetch) bool { return g == f })
	in.fetchBytes -= len(msg)
	f.buffer, f.chain[0] = nil, Read{}
	in.fetchFree = append(in.fetchFree, f)
	if err == nil {
		err = c.inTurn(heldMessage{f.number, msg, true, b})
	} else if b != nil {
		b.Free()
	}
	if errors.Is(err, ErrNotOffered) {
		err = fmt.Errorf("%w: message %d announced and not offered", ErrProtocol, f.number)
	}
	if err != nil {
		c.cut(err)
	}
}

// unstage frees what the peer will not take any more. c.mu is held.
func (c *conn) unstage() {
	for _, s := range c.staged {
		s.buffer.Free()
	}
	c.staged, c.stagedBytes = nil, 0
}
