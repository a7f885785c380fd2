package rdma

import (
	"fmt"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// link carries a peer's reads and messages: a byte stream (conn) or, within one process, copies (localLink). Its
// methods may be called from any goroutine.
type link interface {
	name() string
	// postReads posts a chain that has been checked.
	postReads(r stream.Request)
	// ping implements Peer.Ping.
	ping(done func(error))
	// sendMessage sends one message of size bytes made of the parts.
	sendMessage(parts [][]byte, size int) error
	// giveUp ends the chains with a limit, see Peer.GiveUp.
	giveUp()
	// detach replaces queued bytes of b by a copy.
	detach(b *Buffer)
	// owed returns how many copied bytes wait for the peer.
	owed() int
	// cutLink ends the link; the peer is then lost.
	cutLink(err error)
}

// direct is a way beside a byte stream: it serves chains without the peer's processor, and may carry short messages.
// A conn always has one; streamOnly means none. Chains and messages that a direct does not take go over the stream.
type direct interface {
	name() string
	// readDirect serves a chain, or returns false to leave it to the stream.
	readDirect(r stream.Request) bool
	// sendDirect sends a message under its number, or returns false. conn.out.mu is held, so that numbers and posts
	// have one order.
	sendDirect(number uint64, parts [][]byte, size int) bool
	// giveSegment lets the peer read a segment, which it requested with key. It may do nothing: the peer then
	// continues over the stream.
	giveSegment(s *memory.Segment, key uint64) error
	// granted receives a segment that the peer lets this end read.
	granted(g stream.Granted) error
	// broken receives the peer's report that its end has failed.
	broken(why string)
	// giveUp moves all chains to the stream if one should have ended before now.
	giveUp(now time.Duration)
	// tick is called by the loop every tickEvery. A chain without progress for limit is given up.
	tick(now, limit time.Duration)
	closeDirect(err error)
}

// device is the node's verbs device: one completion queue, polled by the node's loop, and the queue pairs of its
// peers.
type device interface {
	completions
	pairing
	closeDevice() // called when the node's loops have ended and its peers are gone
}

// completions is the completion queue of a device. Only the loop calls these.
type completions interface {
	channel() int               // a descriptor that becomes readable with an event
	takeEvent()                 // consumes the event that armEvent requested
	armEvent()                  // requests an event at the next completion
	poll() int                  // handles completions, and returns their number
	busy() bool                 // reports posted work that is not completed
	pollingTime() time.Duration // how long polling is worthwhile
	giveUpDoomed()              // gives up the queue pairs that other goroutines found broken
}

// pairing makes queue pairs over a peer's byte stream, see upgrade.go.
type pairing interface {
	offer(c *conn) error
	acceptPair(c *conn, offered stream.Setup) // may take milliseconds
	accepted(c *conn, answer stream.Setup) error
	refusedPair(c *conn)
}

// streamOnly is the direct of a conn that has none.
type streamOnly struct {
	fallen bool // there was one, and it failed
}

// granted refuses a segment that nobody can have requested; one requested by a direct may arrive after that failed.
func (s streamOnly) granted(stream.Granted) error {
	if s.fallen {
		return nil
	}
	return fmt.Errorf("%w: segment granted that was not asked for", ErrProtocol)
}

func (streamOnly) name() string                              { return "tcp" }
func (streamOnly) readDirect(stream.Request) bool            { return false }
func (streamOnly) sendDirect(uint64, [][]byte, int) bool     { return false }
func (streamOnly) giveSegment(*memory.Segment, uint64) error { return nil }
func (streamOnly) broken(string)                             {}
func (streamOnly) giveUp(time.Duration)                      {}
func (streamOnly) tick(time.Duration, time.Duration)         {}
func (streamOnly) closeDirect(error)                         {}
