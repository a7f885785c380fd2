package rdma

import (
	"fmt"
	"time"

	"downbeat.dev/rdma/stream"
)

// A read whose result nobody needs any more is given up: its reader gets its memory back at once, and bytes that the
// peer still sends for it are dropped. So a slow or silent peer holds none of the reader's memory, and keeps its
// connection for when it recovers (decision 0044).

// ReadWithin is ReadEach with a limit: at most some 50 ms after the limit, a chain that has not ended ends with
// ErrGivenUp, and its Dst bytes belong to the caller again. A peer over TLS is cut off instead; one over verbs
// continues over its byte stream. limit must be positive.
func (p *Peer) ReadWithin(limit time.Duration, chain []Read, each func(i int), done func(error)) {
	if limit <= 0 {
		done(fmt.Errorf("%w: limit %v: must be positive", ErrInvalid, limit))
		return
	}
	p.post(stream.Request{Reads: chain, Each: each, Done: done, By: p.node.now() + limit})
}

// GiveUp ends the peer's chains of ReadWithin in progress, as their limit would, once the node's loop has read what
// has arrived.
func (p *Peer) GiveUp() {
	if p.Err() == nil {
		p.link.giveUp()
	}
}

// wakeUp makes the loop take a turn soon, unless it is ending. Any goroutine may call it.
func (l *loop) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stop.Load() { // otherwise wake may be closed, and its number another file's
		l.signalWake()
	}
}

// giveUp carries out calls of GiveUp.
func (l *loop) giveUp(now time.Duration) {
	l.node.enterCallbacks()
	defer l.node.leaveCallbacks()
	l.mu.Lock()

	// The list may grow meanwhile; a later call finds givingUp set again and makes the loop take another turn.
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
