package rdma

import (
	"fmt"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// link is what carries a peer's reads and messages: a byte stream (conn) or, within one process, copies (localLink).
// Its methods may be called from any goroutine.
type link interface {
	name() string
	// read posts a chain that has been checked.
	postReads(r stream.Request)
	// ping asks for nothing: see Peer.Ping.
	ping(done func(error))
	// send sends one message of size bytes made of the parts.
	sendMessage(parts [][]byte, size int) error
	// giveUp ends the chains that have a limit: see Peer.GiveUp.
	giveUp()
	// detach has what is queued of b replaced by a copy.
	detach(b *Buffer)
	// owed is how many bytes of copies wait for the peer to take them.
	owed() int
	// cut ends the link; the peer is lost then.
	cutLink(err error)
}

// direct is a way around a byte stream: it serves chains without the peer's processor, and may carry short messages.
// A conn has one at any time; streamOnly stands for none. What a direct does not take goes over the stream.
type direct interface {
	name() string
	// read serves a chain, or reports false and leaves it to the stream.
	readDirect(r stream.Request) bool
	// send sends a message under its number, or reports false. conn.out.mu is held, so that numbers and posts have one order.
	sendDirect(number uint64, parts [][]byte, size int) bool
	// give lets the peer read a segment, for which it asked with key. To do nothing is an answer: the peer goes on by
	// the stream.
	giveSegment(s *memory.Segment, key uint64) error
	// granted takes a segment that the peer lets this end read.
	granted(g stream.Granted) error
	// broken is the peer's word that its end has failed.
	broken(why string)
	// giveUp moves all chains to the stream if one should have ended before now.
	giveUp(now time.Duration)
	// tick is called by the loop every tickEvery. What has not moved for limit is given up.
	tick(now, limit time.Duration)
	closeDirect(err error)
}

// device is what verbs need of a node: one completion queue, polled by the node's loop, and the queue pairs of its
// peers.
type device interface {
	completions
	pairing
	closeDevice() // the node's loops have ended and its peers are gone
}

// completions are a device's. Only the loop calls these.
type completions interface {
	channel() int        // a descriptor that is readable once an event has come
	event()              // takes the event that arm asked for
	armEvent()           // asks for an event at the next completion
	poll() int           // ends what has completed, and returns how much that was
	busy() bool          // something is posted and not completed
	spin() time.Duration // how long polling is worth it
	bury()               // gives up the queue pairs that were found broken elsewhere
}

// pairing makes queue pairs over a peer's byte stream: see upgrade.go.
type pairing interface {
	offer(c *conn) error
	acceptPair(c *conn, offered stream.Setup) // may take milliseconds
	accepted(c *conn, answer stream.Setup) error
	refusedPair(c *conn)
}

// streamOnly is the direct of a conn that has none.
type streamOnly struct {
	fallen bool // there was one, and it broke
}

// granted refuses what nobody can have asked for; what a direct asked for may come after it broke.
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
