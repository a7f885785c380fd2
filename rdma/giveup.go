package rdma

import (
	"fmt"
	"time"

	"downbeat.dev/rdma/stream"
)

// A read that is of no use any more is given up: its reader gets its memory back at once, and the bytes that the peer
// still sends for it are dropped as they come. So a peer that is slow, or silent, holds none of the reader's memory,
// and keeps its connection for when it is well again (decision 0044).

// ReadWithin is ReadEach with a limit: some 50 ms after it has passed at the latest, a chain that has not ended
// ends with ErrGivenUp, and its Dst bytes are the caller's again. A peer over TLS is cut instead, one over verbs
// goes on over its byte stream. limit must be positive.
func (p *Peer) ReadWithin(limit time.Duration, chain []Read, each func(i int), done func(error)) {
	if limit <= 0 {
		done(fmt.Errorf("%w: limit %v: must be positive", ErrInvalid, limit))
		return
	}
	p.post(stream.Request{Reads: chain, Each: each, Done: done, By: p.node.now() + limit})
}

// GiveUp ends the peer's chains of ReadWithin that are under way, as their limit would, as soon as the node's loop
// has taken in what has come.
func (p *Peer) GiveUp() {
	if p.Err() == nil {
		p.link.giveUp()
	}
}

// wakeUp has the loop take a turn soon, unless it ends. Any goroutine may call it.
func (l *loop) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stop.Load() { // or wake may be closed, and another file
		l.signalWake()
	}
}

// giveUp acts on calls of GiveUp.
func (l *loop) giveUp(now time.Duration) {
	l.node.enterCallbacks()
	defer l.node.leaveCallbacks()
	l.mu.Lock()

	// The list may grow meanwhile; whoever comes later finds givingUp set again, and has the loop take another
	// turn.
	n := len(l.conns)
	l.mu.Unlock()
	for i := range n {
		if c := l.connAt(int32(i)); c != nil && c.reads.givingUp.Swap(false) {
			c.reads.giveUpOverdue(never)
		}
	}
}

// never is later than every limit of a chain.
const never = time.Duration(1<<63 - 1)
