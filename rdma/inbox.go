package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/rdma/stream"
)

// heldMax bounds the bytes of messages that came out of order: announced ones, and others.
const heldMax = 2 * stream.QueueMax

// inbox delivers a conn's messages in the order of their numbers. Over verbs, long messages travel differently from
// short ones and may arrive later. It belongs to the conn's reader.
type inbox struct {
	conn       *conn
	next       uint64                 // number of the next message to deliver
	held       map[uint64]heldMessage // arrived out of order
	heldBytes  int
	fetches    []*fetch // announced messages being read
	fetchFree  []*fetch
	fetchBytes int
}

// heldMessage is an arrived message. One that was fetched has its own memory, in buffer if that is not nil.
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

// deliverMessage takes a message, or the announcement of one.
func (in *inbox) deliverMessage(number uint64, msg []byte) error {
	if number&announced != 0 {
		return in.fetchAnnounced(number&^announced, msg)
	}
	return in.inTurn(heldMessage{number: number, bytes: msg})
}

// inTurn delivers a message, or keeps it until the earlier ones have arrived. A duplicate is dropped.
func (in *inbox) inTurn(m heldMessage) error {
	if m.number > in.next {
		return in.holdMessage(m)
	}
	if m.number < in.next {
		m.free()
		return nil
	}

	// Held messages that follow are delivered with it, so that none waits for another arrival.
	in.conn.socket.noteCall()
	for {
		in.next++
		in.conn.peer.receive(m.bytes)
		m.free()
		if m.fetched {
			in.conn.out.sendFrame(stream.Frame{Kind: stream.KindTaken, ID: m.number})
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

// holdMessage keeps a message that overtook others until they have arrived. Only large ones, which are fetched, may
// be overtaken.
func (in *inbox) holdMessage(m heldMessage) error {
	if !in.conn.peer.node.announce.Load() || in.heldBytes+len(m.bytes) > heldMax || len(in.held) > announcedMax {
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

	// The bytes of a message in a frame belong to the reader only until it continues.
	if !m.fetched {
		m.bytes = bytes.Clone(m.bytes)
	}
	in.held[m.number] = m
	in.heldBytes += len(m.bytes)
	return nil
}

// releaseHeld frees the messages that will not be delivered any more.
func (in *inbox) releaseHeld() {
	for _, m := range in.held {
		m.free()
	}
	in.held, in.heldBytes = nil, 0
}

// fetch is the read of an announced message.
type fetch struct {
	in     *inbox
	number uint64
	buffer *Buffer // nil if no registered memory was free
	chain  [1]Read
	done   func(error) // ended, made once
}

// fetchAnnounced starts to read an announced message.
func (in *inbox) fetchAnnounced(number uint64, body []byte) error {
	node := in.conn.peer.node
	if !node.announce.Load() || len(body) != stream.RemoteBytes {
		return fmt.Errorf("%w: message %d announced in %d bytes", ErrProtocol, number, len(body))
	}
	if number < in.next || in.expectsMessage(number) {
		return nil // it was announced twice, over two ways
	}

	// An announcement takes only 20 bytes, so the bytes being fetched are limited like queued ones.
	r := stream.ParseRemote(body)
	size := int(r.Length)
	if size == 0 || size > MessageMax || in.fetchBytes+size > stream.QueueMax || len(in.fetches) >= stream.ChainsMax {
		return fmt.Errorf("%w: message of %d bytes announced; %d messages of %d bytes are on their way", ErrProtocol, size, len(in.fetches), in.fetchBytes)
	}

	// The peer's device can read into memory of the pool; other memory is filled over the byte stream.
	f := in.newFetch(number)
	if b, err := node.pool.AllocNow(size); err == nil {
		f.buffer = b
		f.chain[0] = Read{Dst: b.Bytes(), Src: r}
	} else {
		f.chain[0] = Read{Dst: make([]byte, size), Src: r}
	}

	in.fetches = append(in.fetches, f)
	in.fetchBytes += size
	in.conn.postReads(stream.Request{Reads: f.chain[:], Done: f.done})
	return nil
}

func (in *inbox) newFetch(number uint64) *fetch {
	if k := len(in.fetchFree); k > 0 {
		f := in.fetchFree[k-1]
		in.fetchFree = in.fetchFree[:k-1]
		f.number = number
		return f
	}
	f := &fetch{in: in, number: number}
	f.done = f.finishFetch
	return f
}

// expectsMessage reports whether a message is being fetched, or held.
func (in *inbox) expectsMessage(number uint64) bool {
	_, early := in.held[number]
	return early || slices.ContainsFunc(in.fetches, func(f *fetch) bool { return f.number == number })
}

// finishFetch delivers a fetched message. The conn's reader calls it.
func (f *fetch) finishFetch(err error) {
	in, number, b, msg := f.in, f.number, f.buffer, f.chain[0].Dst
	in.fetches = slices.DeleteFunc(in.fetches, func(g *fetch) bool { return g == f })
	in.fetchBytes -= len(msg)
	f.buffer, f.chain[0] = nil, Read{}
	in.fetchFree = append(in.fetchFree, f)

	if err == nil {
		err = in.inTurn(heldMessage{number, msg, true, b})
	} else if b != nil {
		b.Free()
	}
	// A sender offers an announced message until it is taken, so a refusal breaks the protocol.
	if errors.Is(err, ErrNotOffered) {
		err = fmt.Errorf("%w: message %d announced and not offered", ErrProtocol, number)
	}
	if err != nil {
		in.conn.cutLink(err)
	}
}
