package rdma

import (
	"encoding/binary"
	"fmt"
	"slices"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// Over verbs, a message that is too long for one SEND is announced: its sender copies it into a registered buffer,
// offers the buffer and sends the offer in the message's place. The receiver reads it like any other offer
// (one-sided, or over the byte stream if that is impossible), delivers it in order and confirms it. So long messages
// need no memory reserved per peer, and no peer ever gets the right to write.
const (
	messageDirect = 16<<10 - 8      // bytes of one SEND without its number
	announced     = uint64(1) << 63 // flag in a message's number: its body is a Remote
	announcedMax  = 1 << 15         // limit of messages sent after one that the peer has not taken
)

// outbox numbers the messages of a conn, and keeps announced ones until the peer has taken them. conn.out.mu guards
// it.
type outbox struct {
	conn        *conn
	number      uint64          // of the next message
	staged      []stagedMessage // announced and not taken, by number
	stagedBytes int
	sentBytes   uint64                   // of messages, without announced ones
	offer       [stream.RemoteBytes]byte // body of an announcement
	parts       [1][]byte                // offer
}

// stagedMessage is an announced message that the peer has not taken yet.
type stagedMessage struct {
	number uint64
	buffer *Buffer
	sent   uint64 // outbox.sentBytes at the time
}

// sendMessage queues or writes one message. If no goroutine is writing, the caller writes directly from the parts;
// otherwise they are copied, and leave with the writer's next call.
func (o *outbox) sendMessage(parts [][]byte, size int) error {
	c := o.conn
	var staged *Buffer
	if size > messageDirect && o.mayAnnounce() {
		staged = o.copyMessage(parts, size)
	}

	// The long copy above needs no lock; from here on the message's place in the order is fixed.
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	err := c.out.frames.Err()
	if err == nil {
		err = o.refuseBehindAnnounced(size)
	}

	switch {
	case err != nil && staged != nil:
		staged.Free()
		return err
	case err != nil:
		return err
	case staged != nil:
		return o.sendOffer(staged)
	}
	return o.postMessage(parts, size)
}

// mayAnnounce reports whether long messages to the peer are announced. (Tests announce them without verbs.)
func (o *outbox) mayAnnounce() bool {
	n := o.conn.peer.node
	return n.announce.Load() && (n.verbs == nil || o.conn.name() == "verbs")
}

// postMessage sends a message's bytes, directly if possible.
func (o *outbox) postMessage(parts [][]byte, size int) error {
	c := o.conn
	if (*c.direct.Load()).sendDirect(o.number, parts, size) {
		o.number++
		o.sentBytes += uint64(size)
		return nil
	}

	// A single message may exceed the limit: it is refused only behind others.
	if waiting := c.out.frames.Bytes(); waiting+stream.HeaderBytes+size > stream.QueueMax && waiting > 0 {
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, waiting, stream.QueueMax)
	}

	f := stream.Frame{Body: uint32(size), Kind: stream.KindMessage, ID: o.number}
	o.number++
	o.sentBytes += uint64(size)

	// Short or waiting messages are copied; others leave from the caller's memory.
	if c.out.frames.Busy() || len(parts) > stream.PartsMax || stream.HeaderBytes+size <= stream.CopyMax {
		c.out.frames.Copy(f, parts...)
		c.out.frames.Flush()
	} else {
		c.out.frames.WriteParts(f, parts)
	}
	return c.out.frames.Err()
}

// resend queues a message that already has its number: the first 8 bytes of msg.
func (o *outbox) resend(msg []byte) {
	c := o.conn
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if c.out.frames.Err() == nil {
		c.out.frames.Copy(stream.Frame{Body: uint32(len(msg) - 8), Kind: stream.KindMessage, ID: binary.LittleEndian.Uint64(msg)}, msg[8:])
		c.out.frames.Flush()
	}
}

// copyMessage copies a message into a buffer, or returns nil if memory is short. It needs no lock.
func (o *outbox) copyMessage(parts [][]byte, size int) *Buffer {
	b, err := o.conn.peer.node.pool.AllocNow(size)
	if err != nil {
		return nil
	}

	at := 0
	for _, p := range parts {
		at += copy(b.Bytes()[at:], p)
	}
	return b
}

// sendOffer sends a staged message's offer. The outbox frees b.
func (o *outbox) sendOffer(b *Buffer) error {
	size := len(b.Bytes())
	if o.stagedBytes+size > stream.QueueMax && o.stagedBytes > 0 {
		b.Free()
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, o.stagedBytes, stream.QueueMax)
	}

	number := o.number
	o.number++
	o.staged = append(o.staged, stagedMessage{number, b, o.sentBytes})
	o.stagedBytes += size

	// The offer takes the message's place and number, so that the receiver delivers the message in order.
	c := o.conn
	o.parts[0] = stream.AppendRemote(o.offer[:0], b.Offer())
	if !(*c.direct.Load()).sendDirect(number|announced, o.parts[:], stream.RemoteBytes) {
		c.out.frames.Copy(stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindMessage, ID: number | announced}, o.parts[0])
		c.out.frames.Flush()
	}
	return c.out.frames.Err()
}

// refuseBehindAnnounced refuses a message of size bytes if too much was sent behind an announced message that the peer
// has not taken: the peer must keep all of that until then.
func (o *outbox) refuseBehindAnnounced(size int) error {
	if len(o.staged) == 0 {
		return nil
	}

	first := o.staged[0]
	if o.number-first.number < announcedMax && o.sentBytes-first.sent+uint64(size) <= stream.QueueMax {
		return nil
	}
	return fmt.Errorf("%w: %d messages of %d bytes wait behind one that the peer has not taken", ErrNoMemory, o.number-first.number, o.sentBytes-first.sent)
}

// freeTaken frees a message that the peer has read. It takes the lock itself.
func (o *outbox) freeTaken(number uint64) error {
	o.conn.out.mu.Lock()
	var b *Buffer
	if i := slices.IndexFunc(o.staged, func(s stagedMessage) bool { return s.number == number }); i >= 0 {
		b = o.staged[i].buffer
		o.stagedBytes -= len(b.Bytes())
		o.staged = slices.Delete(o.staged, i, i+1)
	}
	o.conn.out.mu.Unlock()

	if b == nil {
		return fmt.Errorf("%w: message %d taken that was not announced", ErrProtocol, number)
	}
	memory.FreeAnswered(b)
	return nil
}

// releaseStaged frees the messages that the peer will not take any more.
func (o *outbox) releaseStaged() {
	for _, s := range o.staged {
		s.buffer.Free()
	}
	o.staged, o.stagedBytes = nil, 0
}
